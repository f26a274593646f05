"""
`asyncrl reward try`: a reward function on rows of a dataset, in the killable workers of a run.

    row ── its reference answer, in three forms ─┐
           nothing, nonsense                    ─┴─▶ worker ─▶ reward, metrics, seconds │ the cause of the failure

With `reward.group`, what a row's completions get is compared as one group.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import uvloop
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.failures import FailureBook
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config, overridden
from asyncrl.data.prompts import held_out_stream
from asyncrl.data.table import OPTION, guessed
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages.trajectory import Prompt
from asyncrl.records.formatting import counted
from asyncrl.reward.routing import ABSTAINED, check_routes
from asyncrl.reward.verifier import GroupMember, Verdict, group_member, verifier_input
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.runtime.offline import open_rewards

REFERENCE: Mapping[str, str] = {
    "reference": "{}",
    "#### reference": "#### {}",
    "\\boxed{reference}": "\\boxed{{{}}}",
}
"""Forms of the reference answer that reward functions look for."""
GARBAGE: Mapping[str, str] = {"nothing": "", "nonsense": "\x00<|x|>}{ [((\\boxed{ #### 1e999 NaN \u202e\U0001f92f"}
"""Completions that no row is answered by, and that a policy with random weights writes."""
AMONG = "in the group: "
"""Before the kind of a completion that was compared with the others of its row."""
MAX_SHOWN_CHARS = 60
WIDTH = max(map(len, REFERENCE))
"""Characters of the column of kinds."""

Say = Callable[[str], None]


class Trial(Struct, frozen=True):
    """One call of the function."""

    row: int
    """Number among the usable rows, from 0."""
    kind: str
    """A key of `REFERENCE` or `GARBAGE`, or ``given``; with a group function its verdict comes under it again."""
    seconds: float
    verdict: Verdict | None
    """None if it failed."""
    cause: str = ""


def run_config(run_file: Path, overrides: Sequence[str] = ()) -> Config:
    """Reward and training data of a run file; ``overrides`` are those of ``--set``. Raises `ConfigError`."""
    config = load_config(run_file, overrides)
    return replace(config, data=replace(config.data, held_out=config.data.train))


def trial_config(function: str, data: Path, say: Say, overrides: Sequence[str] = ()) -> Config:
    """
    Configuration with this reward and data; ``overrides`` are those of ``--set``.

    Columns that are neither the default ones nor named by ``overrides`` are guessed, and ``say`` gets them.

    Raises:
        ConfigError: An override does not fit.
        DataError: The file cannot be read, or its columns cannot be guessed.
    """
    raw = {
        "model": {"path": "-"},
        "data": {"train": str(data), "held_out": str(data)},
        "reward": {"function": function},
    }
    config = overridden(raw, overrides)
    return replace(config, data=guessed(config.data, str(data), say, OPTION))


def read_rows(config: Config, number: int) -> list[Prompt]:
    """The first usable rows; raises `DataError` if the file cannot be read, or a row has no reward."""
    stream = held_out_stream(config.data, number)
    check_routes(config.reward, stream.summary.data_sources)
    return [draw.prompt for draw in islice(stream.since(0), number)]


def completions(prompt: Prompt, given: Sequence[str]) -> dict[str, str]:
    """Completions to try by kind: those ``given``, or forms of the reference answer, and garbage."""
    if given:
        return {"given" if len(given) == 1 else f"given {number}": text for number, text in enumerate(given, 1)}
    return {**{kind: form.format(prompt.answer) for kind, form in REFERENCE.items()}, **GARBAGE}


async def trials(config: Config, prompts: Sequence[Prompt], given: Sequence[str] = ()) -> AsyncIterator[Trial]:
    """Call the function for each row and completion, one after the other, so that the seconds are its own."""
    async with open_rewards(config) as pool:
        for row, prompt in enumerate(prompts):
            members: dict[str, GroupMember] = {}
            for kind, text in completions(prompt, given).items():
                inputs = verifier_input(prompt, text, finish_reason="stop", num_tokens=len(text.split()))
                began, verdict, cause = time.monotonic(), None, ""
                try:
                    verdict = await pool.judge(inputs)
                except VerifierError as error:
                    cause = str(error)
                yield Trial(row, kind, time.monotonic() - began, verdict, cause)
                if verdict:
                    members[kind] = group_member(inputs, verdict)
            if config.reward.group and members:
                for trial in await _compared(pool, row, members):
                    yield trial


async def _compared(pool: WorkerPool, row: int, members: Mapping[str, GroupMember]) -> list[Trial]:
    """Compare a row's completions by the group function; each has an equal share of the seconds."""
    began, cause = time.monotonic(), ""
    verdicts: Sequence[Verdict | None] = [None] * len(members)
    try:
        verdicts = await pool.judge_group(list(members.values()))
    except VerifierError as error:
        cause = str(error)
    seconds = (time.monotonic() - began) / len(members)
    return [Trial(row, f"{AMONG}{kind}", seconds, each, cause) for kind, each in zip(members, verdicts, strict=True)]


def attempt(
    config: Config,
    prompts: Sequence[Prompt],
    given: Sequence[str] = (),
    show: Callable[[Trial, bool], None] | None = None,
) -> list[Trial]:
    """All trials; ``show`` is called with each, and whether it is the first of its row."""

    async def run() -> list[Trial]:
        done: list[Trial] = []
        async for trial in trials(config, prompts, given):
            if show:
                show(trial, not done or done[-1].row != trial.row)
            done.append(trial)
        return done

    return uvloop.run(run())


def trial_line(trial: Trial) -> str:
    """
    One line.

    Example:
          reference           reward 1        correct 1  shows_steps 0  0.3 ms
    """
    head = f"  {trial.kind:<{_width(trial.kind)}}  "
    if trial.verdict is None:
        return f"{head}failed: {trial.cause}"
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in trial.verdict.metrics.items())
    answer = f"  answer {shown(trial.verdict.answer)}" if trial.verdict.answer is not None else ""
    return f"{head}reward {trial.verdict.reward:<8.4g} {numbers}{answer}  {trial.seconds * 1000:.1f} ms"


def _width(kind: str) -> int:
    return WIDTH + (len(AMONG) if kind.startswith(AMONG) else 0)


def summary_lines(done: Sequence[Trial]) -> list[str]:
    """Means by kind of completion, failures by cause, and what is suspicious about them."""
    lines = [f"{counted(len(done), 'verdict')} in {sum(trial.seconds for trial in done):.2f} s"]
    means: dict[str, float] = {}
    for kind in dict.fromkeys(trial.kind for trial in done):
        verdicts = [trial.verdict for trial in done if trial.kind == kind and trial.verdict]
        if verdicts:
            means[kind] = sum(verdict.reward for verdict in verdicts) / len(verdicts)
            correct = sum(verdict.metrics["correct"] for verdict in verdicts)
            lines.append(
                f"  {kind:<{_width(kind)}}  mean reward {means[kind]:.4g}, {correct:g} of {len(verdicts)} correct"
            )
    book = FailureBook()
    for trial in done:
        if trial.cause:
            book.count("reward", trial.cause)
        else:
            book.attempted("reward")
    lines += [f"failed      {line}" for line in book.sentences()]
    shares: dict[str, list[float]] = {}
    for trial in done:
        for name, value in (trial.verdict.metrics if trial.verdict else {}).items():
            shares.setdefault(name, []).append(value)
    lines += [
        f"note: reward part {name.removesuffix(ABSTAINED)!r} abstained on every completion"
        for name, values in shares.items()
        if name.endswith(ABSTAINED) and all(values)
    ]
    prefix = AMONG if any(kind.startswith(AMONG) for kind in means) else ""  # The group function has the last word.
    best, garbage = (
        [means[prefix + kind] for kind in kinds if prefix + kind in means] for kinds in (REFERENCE, GARBAGE)
    )
    if best and garbage and max(best) <= max(garbage):
        lines.append("note: no form of the reference answer gets more than garbage; try another with --completion TEXT")
    return lines


def shown(text: str) -> str:
    """A text on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN_CHARS else f"{line[: MAX_SHOWN_CHARS - 3]}..."


def try_reward(config: Config, number: int, given: Sequence[str], say: Say) -> bool:
    """Try the function and say what comes out, row by row; False if a verdict failed."""
    prompts = read_rows(config, number)
    if not prompts:
        raise ConfigError(f"{config.data.train} has no usable row")

    def show(trial: Trial, is_first: bool) -> None:
        if is_first:
            say(f"row {trial.row}  answer {shown(prompts[trial.row].answer)}")
        say(trial_line(trial))

    done = attempt(config, prompts, given, show)
    for line in summary_lines(done):
        say(line)
    return not any(trial.cause for trial in done)
