"""
`asyncrl reward try`: a reward function on rows of a dataset, in the killable workers of a run.

    row ── its reference answer, in three forms ─┐
           nothing, nonsense                     ├─▶ worker ─▶ reward, metrics, seconds │ the cause of the failure
           or what a model writes               ─┘

Rows are spread evenly over the data, and graded until all are or the time is up. With `reward.group`, what a row's
completions get is compared as one group.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import gettempdir

import uvloop
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.failures import FailureBook
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config, overridden
from asyncrl.data.images import Keep, keep_nothing
from asyncrl.data.prompts import Draw, held_out_stream
from asyncrl.data.table import OPTION, guessed
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.messages.words import FinishReason
from asyncrl.records.formatting import counted
from asyncrl.reward.routing import ABSTAINED, check_routes
from asyncrl.reward.verifier import GroupMember, Verdict, group_member, verifier_input
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.runtime.offline import OfflineSampler, open_rewards
from asyncrl.spool.images import ImageStore

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
SAMPLED = "sampled"
"""Beginning of the kinds of what a model wrote."""
ROWS, SAMPLED_ROWS, SAMPLES = 200, 16, 4
"""Rows that are graded; those whose prompts a model answers, and how often."""
LIMIT_S = 30.0
"""Seconds after which no further row is graded."""
SLOW_S, SLOWER = 1.0, 10
"""Seconds from which a verdict is slow, if it is also `SLOWER` times slower than the median."""
SHOWN_ROWS, SHOWN_FAULTS = 5, 10
MAX_SHOWN_CHARS = 60
WIDTH = max(map(len, REFERENCE))
"""Characters of the column of kinds."""

Say = Callable[[str], None]


class GradedText(Struct, frozen=True):
    """A completion to grade."""

    kind: str
    text: str
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0
    opened: str = ""


class Trial(Struct, frozen=True):
    """One call of the function."""

    row: int
    """Row of the data, from 0."""
    kind: str
    """A key of `REFERENCE` or `GARBAGE`, ``given`` or ``sampled``; of a group function's verdict, after `AMONG`."""
    seconds: float
    verdict: Verdict | None
    """None if it failed."""
    cause: str = ""


def run_config(run_file: Path, overrides: Sequence[str] = ()) -> Config:
    """Reward and training data of a run file; ``overrides`` are those of ``--set``. Raises `ConfigError`."""
    config = load_config(run_file, overrides)
    return replace(config, data=replace(config.data, held_out=config.data.train, hold_out=0))


def trial_config(
    function: str, data: Path, say: Say, overrides: Sequence[str] = (), *, model: str | None = None
) -> Config:
    """
    Configuration with this reward and data; ``overrides`` are those of ``--set``.

    Columns that are neither the default ones nor named by ``overrides`` are guessed, and ``say`` gets them.

    Raises:
        ConfigError: An override does not fit.
        DataError: The file cannot be read, or its columns cannot be guessed.
    """
    raw = {
        "model": {"path": model or "-"},
        "data": {"train": str(data), "held_out": str(data)},
        "reward": {"function": function},
    }
    config = overridden(raw, overrides)
    return replace(config, data=guessed(config.data, str(data), say, OPTION))


def read_rows(config: Config, number: int, keep: Keep = keep_nothing) -> list[Draw]:
    """
    Read ``number`` usable rows, spread evenly over the data; ``keep`` gets the pictures.

    Raises `DataError` if the file cannot be read, or a row has no reward.
    """
    stream = held_out_stream(config.data, 0, keep)
    check_routes(config.reward, stream.summary.data_sources)
    size = stream.num_rows
    number = min(number, size)
    return [stream.at(place * size // number) for place in range(number)]


def completions(prompt: Prompt, given: Sequence[str]) -> list[GradedText]:
    """Completions to try: those ``given``, or forms of the reference answer, and garbage."""
    kinds = {"given" if len(given) == 1 else f"given {number}": text for number, text in enumerate(given, 1)} or {
        **{kind: form.format(prompt.answer) for kind, form in REFERENCE.items()},
        **GARBAGE,
    }
    return [GradedText(kind, text, num_tokens=len(text.split())) for kind, text in kinds.items()]


def with_samples(config: Config) -> Config:
    """
    The configuration that `sampled` needs: the sampling of training, and lengths that fit the model.

    Raises `ConfigError` if lengths do not fit, or what is rewarded are episodes.
    """
    from asyncrl.tools.evaluate import with_room

    if config.environment.is_set:
        raise ConfigError("the reward is one of episodes, which --sample does not play: asyncrl episode try plays them")
    of = config.sampling
    drawn = replace(config.evaluation, samples=SAMPLES, temperature=of.temperature, top_p=of.top_p, top_k=of.top_k)
    return with_room(replace(config, evaluation=drawn))


def sampled(config: Config, draws: Sequence[Draw], images: ImageStore) -> list[list[GradedText]]:
    """Completions that ``config.model`` writes for each row, `SAMPLES` times. Raises `EngineError`."""
    from asyncrl.runtime.rollout import load_engine

    async def write(sampler: OfflineSampler, place: int, index: int) -> GradedText:
        prompt = draws[place].prompt
        pictures = tuple(images.read(image.digest) for image in prompt.images)
        found = await sampler.sample(Unit(place, index, "held_out"), prompt, pictures)
        done = found.completion
        return GradedText(
            f"{SAMPLED} {index + 1}", found.text, done.finish_reason, len(done.completion_ids), found.opened
        )

    async def every() -> list[list[GradedText]]:
        engine = await asyncio.to_thread(load_engine, config)
        try:
            sampler = OfflineSampler(config, engine)
            return await asyncio.gather(
                *(asyncio.gather(*(write(sampler, place, i) for i in range(SAMPLES))) for place in range(len(draws)))
            )
        finally:
            await engine.aclose()

    return uvloop.run(every())


async def trials(
    config: Config, rows: Iterable[tuple[Draw, Sequence[GradedText]]], end_s: float
) -> AsyncIterator[Trial]:
    """
    Call the function for each row and completion, one after the other, so that the seconds are its own.

    After a verdict that took the whole ``reward.timeout_s``, the others of its row are left out; no row begins after
    ``end_s`` of `time.monotonic`.
    """
    async with open_rewards(config) as pool:
        for draw, written in rows:
            if time.monotonic() > end_s:
                return
            members: dict[str, GroupMember] = {}
            for one in written:
                inputs = verifier_input(
                    draw.prompt,
                    one.text,
                    finish_reason=one.finish_reason,
                    num_tokens=one.num_tokens,
                    opened=one.opened,
                )
                began_s, verdict, cause = time.monotonic(), None, ""
                try:
                    verdict = await pool.judge(inputs)
                except VerifierError as error:
                    cause = str(error)
                yield Trial(draw.row, one.kind, seconds := time.monotonic() - began_s, verdict, cause)
                if verdict:
                    members[one.kind] = group_member(inputs, verdict)
                elif seconds >= config.reward.timeout_s:
                    break
            if config.reward.group and members:
                for trial in await _compared(pool, draw.row, members):
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
    rows: Sequence[tuple[Draw, Sequence[GradedText]]],
    show: Callable[[Trial], None] = lambda _: None,
    *,
    limit_s: float = LIMIT_S,
) -> list[Trial]:
    """All trials of which rows begin within ``limit_s``; ``show`` is called with each."""

    async def run() -> list[Trial]:
        done: list[Trial] = []
        async for trial in trials(config, rows, time.monotonic() + limit_s):
            show(trial)
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
    for kind in dict.fromkeys(map(_kind, done)):
        verdicts = [trial.verdict for trial in done if _kind(trial) == kind and trial.verdict]
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
    lines += [*_abstained_lines(done), *_fault_lines(done)]
    prefix = AMONG if any(kind.startswith(AMONG) for kind in means) else ""  # The group function has the last word.
    best, garbage = (
        [means[prefix + kind] for kind in kinds if prefix + kind in means] for kinds in (REFERENCE, GARBAGE)
    )
    if best and garbage and max(best) <= max(garbage):
        lines.append("note: no form of the reference answer gets more than garbage; try another with --completion TEXT")
    return lines


def _kind(trial: Trial) -> str:
    """The kind under which a trial counts: all that a model wrote is of one."""
    return trial.kind.rstrip(" 0123456789") if SAMPLED in trial.kind else trial.kind


def _abstained_lines(done: Sequence[Trial]) -> list[str]:
    """A note about each part of the reward that abstained on every completion."""
    shares: dict[str, list[float]] = {}
    for trial in done:
        for name, value in (trial.verdict.metrics if trial.verdict else {}).items():
            shares.setdefault(name, []).append(value)
    return [
        f"note: reward part {name.removesuffix(ABSTAINED)!r} abstained on every completion"
        for name, values in shares.items()
        if name.endswith(ABSTAINED) and all(values)
    ]


def _fault_lines(done: Sequence[Trial]) -> list[str]:
    """A line for each row with a verdict that failed or was slow, and for sampled rows whether they teach anything."""
    usual_s = median(trial.seconds for trial in done) if done else 0.0
    faults: dict[int, list[str]] = {}
    for trial in done:
        if trial.cause:
            faults.setdefault(trial.row, []).append(f"{trial.kind}: {trial.cause}")
        elif trial.seconds > max(SLOW_S, SLOWER * usual_s):
            faults.setdefault(trial.row, []).append(f"{trial.kind}: slow, {trial.seconds:.1f} s")
    lines = [
        f"row {row}: {first}{f' (and {len(rest)} more)' if rest else ''}" for row, (first, *rest) in faults.items()
    ]
    if more := len(lines) - SHOWN_FAULTS:
        lines[SHOWN_FAULTS:] = [f"and {counted(more, 'more row')} with faults"] if more > 0 else []
    groups: dict[int, set[float]] = {}
    for trial in done:
        if trial.verdict and trial.kind.removeprefix(AMONG).startswith(SAMPLED):
            groups.setdefault(trial.row, set()).add(trial.verdict.reward)
    if groups:
        telling = sum(len(rewards) > 1 for rewards in groups.values())
        lines.append(f"{telling} of {counted(len(groups), 'prompt')} got different rewards: the others teach nothing")
    return lines


def shown(text: str) -> str:
    """A text on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN_CHARS else f"{line[: MAX_SHOWN_CHARS - 3]}..."


def try_reward(
    config: Config,
    number: int | None,
    given: Sequence[str],
    say: Say,
    *,
    limit_s: float = LIMIT_S,
    is_sampled: bool = False,
) -> bool:
    """
    Try the function and say what comes out of the first rows, and in a summary of all; False if a verdict failed.

    Args:
        number: Rows; None chooses.
        is_sampled: Grade what ``config.model`` writes. Raises `EngineError` if it fails.
    """
    with closing(ImageStore(Path(gettempdir()))) as images:
        draws = read_rows(config, number or (SAMPLED_ROWS if is_sampled else ROWS), images.add)
        if not draws:
            raise ConfigError(f"{config.data.train} has no usable row")
        written = sampled(config, draws, images) if is_sampled else [completions(one.prompt, given) for one in draws]
    texts = {draw.row: {one.kind: one.text for one in own} for draw, own in zip(draws, written, strict=True)}
    answers = {draw.row: draw.prompt.answer for draw in draws}
    said: list[int] = []

    def show(trial: Trial) -> None:
        if trial.row not in said[-1:]:
            said.append(trial.row)
            if len(said) <= SHOWN_ROWS:
                say(f"row {trial.row}  answer {shown(answers[trial.row])}")
        if len(said) <= SHOWN_ROWS:
            wrote = f"  {shown(texts[trial.row][trial.kind])}" if is_sampled and trial.kind in texts[trial.row] else ""
            say(f"{trial_line(trial)}{wrote}")

    done = attempt(config, list(zip(draws, written, strict=True)), show, limit_s=limit_s)
    if len(said) > SHOWN_ROWS:
        say(f"... and {counted(len(said) - SHOWN_ROWS, 'more row')}")
    if len(said) < len(draws):
        say(f"after {limit_s:g} s, {len(draws) - len(said)} of {len(draws)} rows were not graded")
    for line in summary_lines(done):
        say(line)
    return not any(trial.cause for trial in done)
