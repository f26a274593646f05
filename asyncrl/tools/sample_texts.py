"""
`asyncrl samples`: a few samples of a file, chosen and shown within the columns of a terminal.

    samples/step_000041.parquet, held_out/version_000040.parquet ─ read ─▶ rows ─ chosen ─▶ one of each group first
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.foreign_text import escaped
from asyncrl.records.formatting import counted, nth, ordinal
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import evaluations_of, read_settings, require_run
from asyncrl.records.samples import HELD_OUT, newest_file, step_file

Order = Literal["spread", "best", "worst"]
"""``spread``: as in the file, one of each group first; ``best`` and ``worst``: by reward."""


class SampleText(Struct, frozen=True, kw_only=True):
    """One trained trajectory, or one held-out completion."""

    step: int
    """Number of the step; for a held-out completion, the steps trained before it."""
    group_id: int
    index: int
    prompt: str
    completion: str
    answer: str
    reward: float
    finish_reason: str
    num_tokens: int
    staleness: int
    oldest_version: int
    num_turns: int = 1


def trained_file(folder: Path, step: int | None) -> Path:
    """File of a step, counted from 1, by default the newest; raises `ConfigError` if it is missing."""
    if (newest := newest_file(folder)) is None:
        raise ConfigError(f"there are no samples in {folder}: no step is done yet, or broker.samples is false")
    if step is None:
        return newest
    path = step_file(folder, ordinal(step))
    if not path.is_file():
        last = nth(int(newest.stem.rpartition("_")[2]))
        raise ConfigError(f"there are no samples of step {step} in {folder}; the newest are of step {last}")
    return path


def held_out_file(folder: Path, step: int | None) -> Path:
    """File of the evaluation after ``step`` steps, by default the newest; raises `ConfigError` if it is missing."""
    files = sorted((folder / HELD_OUT).glob("version_*.parquet"))
    if not files:
        raise ConfigError(f"there are no held-out samples in {folder / HELD_OUT}")
    if step is None:
        return files[-1]
    steps = {_first_step(path): path for path in files}
    if step not in steps:
        raise ConfigError(
            f"there was no evaluation after {step} steps; there are held-out samples after "
            f"{', '.join(str(known) for known in steps)} steps"
        )
    return steps[step]


def read_texts(path: Path) -> list[SampleText]:
    """Every row of a samples file. Raises `LedgerError` if it is damaged."""
    import pyarrow.parquet as pq

    with _readable(path):
        known = pq.read_schema(path).names
        columns = [name for name in SampleText.__struct_fields__ if name in known or name != "num_turns"]
        rows = pq.read_table(path, columns=columns).to_pylist()
        return [SampleText(**row) for row in rows]


def chosen(rows: Sequence[SampleText], number: int, order: Order) -> list[SampleText]:
    """At most ``number`` rows; of equal ones, one of each group comes before a second one of any."""
    seen: Counter[int] = Counter()
    ranked = []
    for row in rows:
        ranked.append((seen[row.group_id], row))
        seen[row.group_id] += 1
    sign = {"spread": 0, "best": -1, "worst": 1}[order]
    ranked.sort(key=lambda item: (sign * item[1].reward, item[0]))
    return [row for _, row in ranked[:number]]


def _first_step(path: Path) -> int:
    """Step of the first row, without its texts."""
    import pyarrow.parquet as pq

    with _readable(path):
        steps = pq.read_table(path, columns=["step"])["step"]
        return steps[0].as_py() if len(steps) else -1


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise `LedgerError` if the file turns out to be damaged."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, TypeError) as error:
        raise LedgerError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error


# ── samples ───────────────────────────────────────────────────────────────────────────────────
# `asyncrl samples`: a few samples of a step as text, within the columns of a terminal.
#
#     ── reward 0, 12 tokens, stop, staleness 1, trajectory 7/0
#     prompt       What is 17 * 23?
#     completion   The answer is
#                  … 20 more lines …
#                  #### 391
#     answer       391

LABEL = 13
"""Columns before a text."""
MAX_LINES = {"prompt": 8, "completion": 24, "answer": 4}
"""Most lines of each text; of a longer one, lines in the middle are left out."""


class Samples(Struct, frozen=True):
    """Some samples of one file."""

    file: str
    is_held_out: bool
    total: int
    """Samples of the file."""
    reward_mean: float
    rows: list[SampleText]


def read_samples(path: Path, *, step: int | None, is_held_out: bool, number: int, order: Order) -> Samples:
    """
    Some samples of a step, counted from 1, by default the newest, or of the evaluation after ``step`` steps.

    Raises:
        ConfigError: There is no such run, or it has no such samples.
        LedgerError: Their file is damaged.
    """
    directory = require_run(path)
    if is_held_out:
        _require_kept_answers(directory)
    file = (held_out_file if is_held_out else trained_file)(directory.samples, step)
    rows = read_texts(file)
    mean = sum(row.reward for row in rows) / max(len(rows), 1)
    return Samples(str(file), is_held_out, len(rows), mean, chosen(rows, number, order))


def _require_kept_answers(directory: RunDirectory) -> None:
    """Raise `ConfigError`, with what to do, if no evaluation of the run has kept completions."""
    if any((directory.samples / HELD_OUT).glob("*.parquet")):
        return
    num_done = len(evaluations_of(directory.read_events()))
    if not read_settings(directory, []).get("evaluation.answers"):
        cause = f"evaluation.answers is 0, so none of {counted(num_done, 'evaluation')} has kept completions"
        remedy = (
            f"set it, such as to 16, in {directory.config}, or in the run file of the broker's service, and start the "
            "run again: it counts from the next evaluation on"
        )
    elif num_done:
        cause = f"evaluation.answers was 0 in the {counted(num_done, 'evaluation')} so far"
        remedy = "the next one keeps its completions"
    else:
        cause, remedy = "no evaluation is done yet", "see evaluation.at_start, every_versions and data.held_out"
    raise ConfigError(f"{directory.path} has no held-out samples: {cause}; {remedy}")


def sample_lines(found: Samples, run: Path, columns: int) -> Iterator[str]:
    """Lines of at most ``columns`` columns, except for the commands and paths in them."""
    number = f"{len(found.rows)} of {found.total} samples"
    if found.rows:
        step = found.rows[0].step
        number += f" after {counted(step, 'step')}" if found.is_held_out else f" of step {nth(step)}"
    yield f"{found.file}: {number}, mean reward {found.reward_mean:.4g}"
    for row in found.rows:
        yield ""
        tokens = counted(row.num_tokens, "token")
        facts = f"reward {row.reward:.4g}, {tokens}, {row.finish_reason}, staleness {row.staleness}"
        yield f"── {facts}, trajectory {row.group_id}/{row.index}"
        for name, text in (("prompt", row.prompt), ("completion", row.completion), ("answer", row.answer)):
            if text or name != "answer":
                yield from _said(name, text, columns)
        if row.num_turns > 1 and not found.is_held_out:
            place = f"--step {nth(row.step)} --group {row.group_id} --index {row.index}"
            yield f"{row.num_turns} turns: asyncrl episode show {run} {place}"


def _said(name: str, text: str, columns: int) -> Iterator[str]:
    """Lines of one text, the first with its name."""
    width = max(columns - LABEL, 20)
    wrapper = textwrap.TextWrapper(width, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False)
    lines = [part for line in text.splitlines() for part in wrapper.wrap(escaped(line.expandtabs())) or [""]]
    for number, line in enumerate(_shortened(lines, MAX_LINES[name]) or ["(empty)"]):
        yield f"{'' if number else name:<{LABEL}}{line}".rstrip()


def _shortened(lines: Sequence[str], most: int) -> list[str]:
    """The first and the last lines: an answer is often at the end."""
    if len(lines) <= most:
        return list(lines)
    first, last = most // 2, most - 1 - most // 2
    return [*lines[:first], f"… {len(lines) - first - last} more lines …", *lines[len(lines) - last :]]
