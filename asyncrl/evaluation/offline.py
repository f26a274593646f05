"""
Held-out prompts, answered and judged in this process: an engine and killable workers, no broker and no trainer.

    prompt ─ encode ─┬─ generate ─ judge ─▶ row
                     ├─ generate ─ judge ─▶ row        k of each prompt, all prompts at once, as many in the engine's
                     └─ generate ─ judge ─▶ row        hands as keep its slots busy

What sampling and verdicts are is decided where a run decides it, so that a model examined alone and one evaluated
within a run are measured alike.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from msgspec.structs import replace

from asyncrl.broker.leases.lease_terms import sampling_seed
from asyncrl.config.sections import Config
from asyncrl.errors import EngineError, VerifierError
from asyncrl.evaluation.answers import CompletionRow
from asyncrl.evaluation.metrics import EvaluatedCompletion, EvaluatedPrompt
from asyncrl.messages import Prompt
from asyncrl.observe.samples import prompt_text
from asyncrl.reward.verifier import VerifierInput, to_judge
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.rollout.engine import Completion, Engine, Request
from asyncrl.rollout.truncation import fit

Got = TypeVar("Got")

AHEAD = 2
"""Requests handed to an engine for each of its slots: the next one waits there when a slot gets free."""


class OfflineEvaluator:
    """
    One engine and one pool, borrowed.

    Args:
        config: Says how to sample, what becomes of long prompts, and how often to try what failed.
    """

    def __init__(self, config: Config, engine: Engine, pool: WorkerPool) -> None:
        self._config = config
        self._engine = engine
        self._pool = pool
        self._sampling = config.evaluation.sampling(config.sampling)
        self._turns = asyncio.Semaphore(AHEAD * config.rollout.slots)

    async def examine(
        self, prompts: Sequence[Prompt], on_row: Callable[[], None] = lambda: None
    ) -> list[CompletionRow]:
        """
        Ask each prompt ``evaluation.samples`` times.

        Args:
            on_row: Called as one completion more has its verdict, or has failed for good.

        Returns:
            A row for each completion, those of a prompt together, in order.

        Raises:
            EngineDied: The engine's own process is gone.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(self._answer(place, prompt, index, on_row))
                    for place, prompt in enumerate(prompts)
                    for index in range(self._config.evaluation.samples)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [task.result() for task in asked]

    async def _answer(self, place: int, prompt: Prompt, index: int, on_row: Callable[[], None]) -> CompletionRow:
        row = CompletionRow(
            place=place,
            index=index,
            data_source=prompt.data_source,
            prompt=prompt_text(prompt),
            reference=prompt.answer,
        )
        try:
            completion = await self._complete(place, prompt, index)
            row = _with_completion(row, completion, self._engine.decode(completion.completion_ids))
            verdict = await self._tried(partial(self._pool.judge, _sample(prompt, row)))
            row = replace(
                row,
                answer=verdict.answer,
                reward=verdict.reward,
                correct=verdict.metrics["correct"],
                metrics=verdict.metrics,
            )
        except (EngineError, VerifierError) as error:
            row = replace(row, failure=str(error))
        on_row()
        return row

    async def _complete(self, place: int, prompt: Prompt, index: int) -> Completion:
        data = self._config.data
        async with self._turns:
            request = Request(
                prompt_ids=fit(self._engine.encode(prompt), data.max_prompt_tokens, data.truncation),
                sampling=self._sampling,
                seed=sampling_seed(self._config.run.seed, place, self._config.evaluation.samples) + index,
            )
            return await self._tried(partial(self._engine.generate, request))

    async def _tried(self, call: Callable[[], Awaitable[Got]]) -> Got:
        """Tried again where that may help, as often as a run would."""
        for _ in range(self._config.schedule.max_attempts - 1):
            try:
                return await call()
            except (EngineError, VerifierError) as error:
                if not error.retryable:
                    raise
        return await call()


def questions(rows: Sequence[CompletionRow]) -> list[EvaluatedPrompt]:
    """The same, as `asyncrl.evaluation.metrics` wants it."""
    return [_question(list(of_prompt)) for _, of_prompt in groupby(rows, key=lambda row: row.place)]


def _question(rows: Sequence[CompletionRow]) -> EvaluatedPrompt:
    answers = [
        EvaluatedCompletion(
            reward=row.reward,
            correct=row.correct,
            text=row.answer,
            num_tokens=row.num_tokens,
            is_cut=row.finish_reason == "length",
        )
        for row in rows
        if row.reward is not None and row.correct is not None
    ]
    return EvaluatedPrompt(data_source=rows[0].data_source, answers=answers, num_failed=len(rows) - len(answers))


def _with_completion(row: CompletionRow, completion: Completion, text: str) -> CompletionRow:
    num_tokens = len(completion.completion_ids)
    return replace(row, completion=text, finish_reason=completion.finish_reason, num_tokens=num_tokens)


def _sample(prompt: Prompt, row: CompletionRow) -> VerifierInput:
    return to_judge(prompt, row.completion, finish_reason=row.finish_reason or "stop", num_tokens=row.num_tokens)
