"""
`asyncrl samples`: a few samples of a step as text, within the columns of a terminal.

    ── reward 0, 12 tokens, stop, staleness 1, trajectory 7/0
    prompt       What is 17 * 23?
    completion   The answer is
                 … 20 more lines …
                 #### 391
    answer       391
"""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.foreign_text import escaped
from asyncrl.observe.formatting import counted
from asyncrl.observe.run_overview import require_run
from asyncrl.observe.sample_texts import Order, SampleText, chosen, held_out_file, read_texts, trained_file

LABEL = 13
"""Columns before a text."""
MAX_LINES = {"prompt": 8, "completion": 24, "answer": 4}
"""Most lines of each text; of a longer one, lines in the middle are left out."""


class Samples(Struct, frozen=True):
    """Some samples of one file."""

    file: str
    total: int
    """Samples of the file."""
    reward_mean: float
    rows: list[SampleText]


def read_samples(path: Path, *, step: int | None, is_held_out: bool, number: int, order: Order) -> Samples:
    """
    Some samples of a step, by default the newest, or of the evaluation after ``step`` steps.

    Raises:
        ConfigError: There is no such run, or it has no such samples.
        LedgerError: Their file is damaged.
    """
    file = (held_out_file if is_held_out else trained_file)(require_run(path).samples, step)
    rows = read_texts(file)
    mean = sum(row.reward for row in rows) / max(len(rows), 1)
    return Samples(str(file), len(rows), mean, chosen(rows, number, order))


def sample_lines(found: Samples, run: Path, columns: int) -> Iterator[str]:
    """Lines of at most ``columns`` columns, except for the commands and paths in them."""
    yield f"{found.file}: {len(found.rows)} of {found.total} samples, mean reward {found.reward_mean:.4g}"
    for row in found.rows:
        yield ""
        yield _head(row)
        for name, text in (("prompt", row.prompt), ("completion", row.completion), ("answer", row.answer)):
            if text or name != "answer":
                yield from _said(name, text, columns)
        if row.num_turns > 1:
            place = f"--step {row.step} --group {row.group_id} --index {row.index}"
            yield f"{row.num_turns} turns: asyncrl episode show {run} {place}"


def _head(row: SampleText) -> str:
    tokens = counted(row.num_tokens, "token")
    facts = f"reward {row.reward:.4g}, {tokens}, {row.finish_reason}, staleness {row.staleness}"
    return f"── {facts}, trajectory {row.group_id}/{row.index}"


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
