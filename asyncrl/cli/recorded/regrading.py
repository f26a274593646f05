"""
`asyncrl audit --grade`: the samples of a run graded again by its reward, in the killable workers of a run.

Graded are single completions whose prompts the data still has. A reward that is not a function of the completion and
its row, such as one that asks a model, may give another number without anybody having lied.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from asyncrl.broker.ledger.audit import Audit
from asyncrl.config.config import Config
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError, LedgerError, VerifierError
from asyncrl.messages.trajectory import Prompt
from asyncrl.messages.words import FinishReason
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.samples import SampleFacts, prompt_text, read_facts
from asyncrl.reward.verifier import Verdict, VerifierInput, verifier_input
from asyncrl.reward.workers.pool import WorkerPool

TOGETHER = 1024
"""Completions judged at a time."""
ROUNDING = 1e-9


class Gradable(NamedTuple):
    """A sample that can be graded again."""

    file: str
    row: SampleFacts
    inputs: VerifierInput


def regraded(directory: RunDirectory, config: Config, accounts: Audit) -> Audit:
    """The audit with what grading the samples again has found."""
    try:
        problems, num_graded, left = _graded(directory, config)
    except (ConfigError, LedgerError) as error:
        return replace(accounts, unchecked={**accounts.unchecked, "rewards": f"not graded again: {error}"})
    checked = {**accounts.checked, "rewards": f"{num_graded:,} samples graded again"}
    unchecked = {**accounts.unchecked, **({"rewards": "; ".join(left)} if left else {})}
    return replace(accounts, problems=[*accounts.problems, *problems], checked=checked, unchecked=unchecked)


def _graded(directory: RunDirectory, config: Config) -> tuple[list[str], int, list[str]]:
    """Sentences about rewards that differ, the number of samples graded, and what could not be graded."""
    if config.environment.is_set:
        return [], 0, ["episodes, whose environment gave their rewards"]
    prompts = train_stream(config.data, config.run.seed)
    problems, failed, strange = list[str](), list[str](), 0
    gradable = []
    for file in sorted(directory.samples.glob("step_*.parquet")):
        for row in read_facts(file):
            prompt = prompts.at(row.group_id).prompt
            if (row.prompt, row.answer) == (prompt_text(prompt), prompt.answer):
                gradable.append(Gradable(f"samples/{file.name}", row, _inputs(prompt, row)))
            else:
                strange += 1
    for one, verdict in zip(gradable, asyncio.run(_judged(config, [one.inputs for one in gradable])), strict=True):
        if verdict is None:
            failed.append(one.file)
        else:
            problems += _different(one, verdict)
    left = [f"{len(failed):,} samples, for which the reward failed now"] if failed else []
    left += [f"{strange:,} samples, whose prompts the data does not have"] if strange else []
    return problems, len(gradable) - len(failed), left


def _inputs(prompt: Prompt, row: SampleFacts) -> VerifierInput:
    reason: FinishReason = "length" if row.finish_reason == "length" else "stop"
    return verifier_input(prompt, row.completion, finish_reason=reason, num_tokens=row.num_tokens)


async def _judged(config: Config, inputs: Sequence[VerifierInput]) -> list[Verdict | None]:
    """Verdicts; None where the reward failed."""

    async def judged(one: VerifierInput) -> Verdict | None:
        try:
            return await pool.judge(one)
        except VerifierError:
            return None

    verdicts: list[Verdict | None] = []
    async with WorkerPool(config.reward) as pool:
        for first in range(0, len(inputs), TOGETHER):
            verdicts += await asyncio.gather(*map(judged, inputs[first : first + TOGETHER]))
    return verdicts


def _different(one: Gradable, verdict: Verdict) -> Iterator[str]:
    if not math.isclose(one.row.reward, verdict.reward, rel_tol=ROUNDING, abs_tol=ROUNDING):
        yield (
            f"{one.file}: unit {one.row.group_id}/{one.row.index} has the reward {one.row.reward}: graded again, its "
            f"completion gets {verdict.reward}"
        )
