"""
What ``asyncrl data check FILE`` tells about a dataset.

    train.parquet: 7473 rows
      columns       prompt, answer, data_source, solution
      data sources  openai/gsm8k 7473
      prompts       0 chat, 7473 text
      prompt chars  min 109   5% 184   median 284   95% 481   max 1052
      no problems
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.config import Data
from asyncrl.data.row import prompt_of, require_columns
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError
from asyncrl.messages import Prompt

SHOWN = 5
"""Bad rows that are named; the others are counted."""

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}


class Inspection(Struct, frozen=True, kw_only=True):
    """A dataset, looked at from end to end."""

    path: Path
    num_rows: int
    columns: list[str]
    data_sources: dict[str, int]
    """Good rows of each, most frequent first."""
    num_chats: int
    """Good rows whose prompt is a chat; the others are plain text."""
    prompt_chars: dict[str, int]
    """Quantiles of the prompt's length in characters, over good rows; empty if there are none."""
    problems: list[str]
    """One sentence for every row that cannot be used: where it is, and what is wrong with it."""

    def text(self) -> str:
        """The report, for a terminal."""
        sources = "   ".join(f"{name or '(none)'} {count}" for name, count in self.data_sources.items())
        chars = "   ".join(f"{name} {value}" for name, value in self.prompt_chars.items())
        lines = [
            f"{self.path}: {self.num_rows} rows",
            f"  columns       {', '.join(self.columns)}",
            f"  data sources  {sources or '-'}",
            f"  prompts       {self.num_chats} chat, {self.num_rows - len(self.problems) - self.num_chats} text",
            f"  prompt chars  {chars or '-'}",
            f"  {len(self.problems) or 'no'} {'problem' if len(self.problems) == 1 else 'problems'}",
        ]
        lines.extend(f"    {problem}" for problem in self.problems[:SHOWN])
        if len(self.problems) > SHOWN:
            lines.append(f"    and {len(self.problems) - SHOWN} more")
        return "\n".join(lines)

    def require_usable(self) -> None:
        """
        Refuse a dataset with bad rows.

        Raises:
            DataError: Says how many, and names the first.
        """
        if self.problems:
            raise DataError(
                f"{len(self.problems)} of {self.num_rows} rows cannot be used; the first: {self.problems[0]}"
            )


def inspect(path: Path, data: Data | None = None) -> Inspection:
    """
    Read every row of a dataset as a run would.

    Args:
        path: Parquet or JSONL.
        data: Names the columns; None takes the usual names.

    Raises:
        DataError: It cannot be read at all, or lacks a column.
    """
    data = data or Data(train=str(path))
    rows = open_rows(path)
    require_columns(rows, data)
    prompts, problems = list[Prompt](), list[str]()
    for row in range(len(rows)):
        try:
            prompts.append(prompt_of(rows, row, data))
        except DataError as error:
            problems.append(str(error))
    return Inspection(
        path=path,
        num_rows=len(rows),
        columns=rows.columns,
        data_sources=dict(Counter(prompt.data_source for prompt in prompts).most_common()),
        num_chats=sum(bool(prompt.chat) for prompt in prompts),
        prompt_chars=_quantiles([_chars(prompt) for prompt in prompts]),
        problems=problems,
    )


def _chars(prompt: Prompt) -> int:
    return len(prompt.text) + sum(len(turn["content"]) for turn in prompt.chat)


def _quantiles(values: Sequence[int]) -> dict[str, int]:
    """The value at each quantile, nearest rank: always one that occurs."""
    ordered = sorted(values)
    return {name: ordered[round(share * (len(ordered) - 1))] for name, share in QUANTILES.items()} if ordered else {}
