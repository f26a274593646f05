"""
Offline evaluation: held-out prompts through an engine and verifier workers in this process, without broker or trainer.

    prompt ─ encode ─┬─ sample ─ verify ─▶ row
                     ├─ sample ─ verify ─▶ row        k completions or episodes of each prompt, all prompts at once; the
                     └─ sample ─ verify ─▶ row        engine has just enough requests to keep its slots busy

Sampling parameters, seeds and verdicts come from the same code as in a run, so both give the same metrics.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.leases.lease import sampling_seed
from asyncrl.config.config import Config
from asyncrl.engine import Engine, Request
from asyncrl.episodes.episode import Episode
from asyncrl.episodes.episodes import Episodes
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.episodes.tool_calls import opened_by
from asyncrl.errors import EngineError, VerifierError
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.records.evaluation_files import CompletionRow, image_cell, turn_cell
from asyncrl.records.evaluation_metrics import (
    EvaluatedCompletion,
    EvaluatedPrompt,
    EvaluationMetrics,
    compute_metrics,
    compute_metrics_by_source,
)
from asyncrl.records.samples import prompt_text
from asyncrl.reward.verifier import verifier_input
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.rollout.generations import fit
from asyncrl.served.app import open_models

# ── rewards ───────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_rewards(config: Config) -> AsyncIterator[WorkerPool]:
    """The workers of ``[reward]``, started, with the models that their code may ask. Raises `ConfigError`."""
    async with open_models(config.reward_models) as models, WorkerPool(config.reward, models.variables) as pool:
        yield pool


# ── sampling ──────────────────────────────────────────────────────────────────────────────────
# Completions and episodes of held-out prompts, sampled without a broker, with the seeds of an evaluation.


class OfflineSampler:
    """
    Samples with ``evaluation``'s parameters. Engine and episodes are borrowed.

    Args:
        episodes: Plays episodes; None samples one completion after each prompt.
    """

    def __init__(self, config: Config, engine: Engine, episodes: Episodes | None = None) -> None:
        self._config = config
        self._engine = engine
        self._episodes = episodes
        self._sampling = config.evaluation.sampling(config.sampling)

    async def sample(self, unit: Unit, prompt: Prompt, images: tuple[bytes, ...] = ()) -> SampledTrajectory:
        """
        Sample one completion, or play one episode.

        Args:
            unit: Its group id is the position of the prompt, from 0.
            images: Files of the prompt's pictures.

        Raises:
            EngineError: It failed, or its environment did. ``retryable`` says whether another attempt may succeed.
        """
        if self._episodes:
            return await self.episode(self._episodes, unit, prompt, images).run()
        prompt_ids, seed = self._prompt_ids(prompt), self._seed(unit)
        request = Request(prompt_ids=prompt_ids, sampling=self._sampling, seed=seed, images=images)
        completion = await self._engine.generate(request)
        text = self._engine.decode(completion.completion_ids)
        opened = opened_by(prompt_ids, self._engine.decode)
        return SampledTrajectory(prompt_ids=prompt_ids, completion=completion, text=text, opened=opened)

    def episode(
        self,
        episodes: Episodes,
        unit: Unit,
        prompt: Prompt,
        images: tuple[bytes, ...] = (),
        *,
        on_turn: Callable[[], None] = lambda: None,
    ) -> Episode:
        """An episode that is not playing yet; ``on_turn`` is called after each of its turns. Arguments as `sample`."""
        return episodes.begin(
            unit,
            prompt,
            self._prompt_ids(episodes.shown(prompt)),
            sample=self._engine.generate,
            written=self._engine.written,
            sampling=self._sampling,
            seed=self._seed(unit),
            images=images,
            on_turn=on_turn,
        )

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        data = self._config.data
        prompt_ids, has_images = self._engine.encode(prompt), bool(prompt.images)
        return fit(prompt_ids, data.max_prompt_tokens, data.truncation, has_images=has_images)

    def _seed(self, unit: Unit) -> int:
        return sampling_seed(self._config.run.seed, unit.group_id, self._config.evaluation.samples) + unit.index


# ── evaluation ────────────────────────────────────────────────────────────────────────────────

Result = TypeVar("Result")

PER_SLOT = 2
"""Completions in hand for each slot of the engine: one decodes, one waits for the slot."""


class OfflineEvaluation(Struct, frozen=True, kw_only=True):
    model: str
    data: list[str]
    samples: int
    seed: int
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    tokens: int
    """Tokens that the policy wrote."""
    wall_s: float
    """Without loading the model."""
    overall: EvaluationMetrics
    by_source: dict[str, EvaluationMetrics]
    turns_mean: float | None = None
    """Turns of an episode; None without an environment."""


def summarize(config: Config, rows: Sequence[CompletionRow], wall_s: float) -> OfflineEvaluation:
    prompts = [_evaluated_prompt(list(of_prompt)) for _, of_prompt in groupby(rows, key=lambda row: row.place)]
    samples, sampling = config.evaluation.samples, config.evaluation.sampling(config.sampling)
    turns = [len(row.turns) for row in rows if row.turns]
    return OfflineEvaluation(
        model=config.model.path,
        data=config.data.held_out_files,
        samples=samples,
        seed=config.run.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        tokens=sum(row.num_tokens for row in rows),
        wall_s=round(wall_s, 3),
        overall=compute_metrics(prompts, samples),
        by_source=compute_metrics_by_source(prompts, samples),
        turns_mean=sum(turns) / len(turns) if turns else None,
    )


class OfflineEvaluator:
    """
    Samples and verifies completions of held-out prompts, with a borrowed engine and pool.

    Args:
        read_image: Gives the file of a picture of the prompts by its digest.
        episodes: Plays episodes instead, with the environment of the run.
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        pool: WorkerPool,
        read_image: Callable[[bytes], bytes] = lambda _: b"",
        episodes: Episodes | None = None,
    ) -> None:
        self._config = config
        self._pool = pool
        self._read_image = read_image
        self._sampler = OfflineSampler(config, engine, episodes)
        self._in_hand = asyncio.Semaphore(config.rollout.episodes or PER_SLOT * config.rollout.slots)

    async def evaluate(
        self, prompts: Sequence[Prompt], on_row: Callable[[], None] = lambda: None
    ) -> list[CompletionRow]:
        """
        Sample ``evaluation.samples`` completions of each prompt and verify them.

        Args:
            on_row: Called for each completion that has its verdict or failed for good.

        Returns:
            One row per completion, in the order of prompts and completions.

        Raises:
            EngineDied: The engine's process has died.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                rows = [
                    tasks.create_task(self._evaluate_one(place, prompt, index, on_row))
                    for place, prompt in enumerate(prompts)
                    for index in range(self._config.evaluation.samples)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [row.result() for row in rows]

    async def _evaluate_one(self, place: int, prompt: Prompt, index: int, on_row: Callable[[], None]) -> CompletionRow:
        row = CompletionRow(
            place=place,
            index=index,
            data_source=prompt.data_source,
            prompt=prompt_text(prompt),
            reference=prompt.answer,
            images=image_cell(prompt.images, [] if index else self._files(prompt)),
        )
        try:
            sampled = await self._sample(place, prompt, index)
            completion = sampled.completion
            row = replace(
                row,
                completion=sampled.text,
                finish_reason=completion.finish_reason,
                num_tokens=len(completion.completion_ids),
                turns=turn_cell(sampled.turns),
            )
            inputs = verifier_input(
                prompt,
                sampled.text,
                finish_reason=completion.finish_reason,
                num_tokens=row.num_tokens,
                turns=sampled.turns,
                scores=sampled.scores,
                opened=sampled.opened,
            )
            verdict = await self._with_retries(partial(self._pool.judge, inputs))
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

    async def _sample(self, place: int, prompt: Prompt, index: int) -> SampledTrajectory:
        async with self._in_hand:
            unit = Unit(place, index, "held_out")
            sample = partial(self._sampler.sample, unit, prompt, self._files(prompt))
            return await self._with_retries(sample)

    def _files(self, prompt: Prompt) -> tuple[bytes, ...]:
        return tuple(self._read_image(image.digest) for image in prompt.images)

    async def _with_retries(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat a call that fails with a retryable error, up to ``schedule.max_attempts`` attempts, as in a run."""
        for _ in range(self._config.schedule.max_attempts - 1):
            try:
                return await call()
            except (EngineError, VerifierError) as error:
                if not error.retryable:
                    raise
        return await call()


def _evaluated_prompt(rows: Sequence[CompletionRow]) -> EvaluatedPrompt:
    completions = [
        EvaluatedCompletion(
            reward=row.reward,
            correct=row.correct,
            answer=row.answer,
            num_tokens=row.num_tokens,
            is_cut=row.finish_reason == "length",
        )
        for row in rows
        if row.reward is not None and row.correct is not None
    ]
    num_failed = len(rows) - len(completions)
    return EvaluatedPrompt(data_source=rows[0].data_source, completions=completions, num_failed=num_failed)
