"""
What ``asyncrl data check FILE`` tells about a dataset.

    train.parquet: 7473 rows
      columns        data_source, prompt, ability, reward_model, extra_info
      data sources   openai/gsm8k 7470
      prompts        7470 chat, 0 text
      prompt chars   min 109   5% 184   median 284   95% 481   max 1052
      left behind    extra_info.tools_kwargs 7470
      3 rows cannot be used
             2  'prompt' is empty: train.parquet row 17, ...
             1  it has images, and only text can be asked: train.parquet row 90
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.config.sections import Data
from asyncrl.data.dataset import BadRow, Dataset, by_reason
from asyncrl.data.row import left_behind
from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import AsyncrlError, DataError
from asyncrl.messages import Prompt

SHOWN = 5
"""Reasons that are named; the others are counted."""

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}

CountTokens = Callable[[Prompt], int]
"""Of a prompt as the policy reads it, its chat template applied. Raises `AsyncrlError` if there is no such thing."""


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
    prompt_tokens: dict[str, int]
    """The same in tokens; empty if nobody counts them."""
    left_behind: dict[str, int]
    """Keys of ``extra_info`` that no verifier will see, and rows that have them."""
    bad: list[BadRow]
    """Every row that cannot be used."""
    refused: list[BadRow]
    """Those of them that the configuration does not expect."""

    def text(self) -> str:
        """The report, for a terminal."""
        num_texts = self.num_rows - len(self.bad) - self.num_chats
        facts = {
            "columns": ", ".join(self.columns),
            "data sources": _listed({name or "(none)": count for name, count in self.data_sources.items()}) or "-",
            "prompts": f"{self.num_chats} chat, {num_texts} text",
            "prompt chars": _listed(self.prompt_chars) or "-",
            "prompt tokens": _listed(self.prompt_tokens),
            "left behind": _listed({f"extra_info.{key}": count for key, count in self.left_behind.items()}),
        }
        lines = [f"{self.path}: {self.num_rows} rows"]
        lines += [f"  {name:<13}  {fact}" for name, fact in facts.items() if fact]
        return "\n".join(lines + unusable(self.bad))

    def require_usable(self) -> None:
        """
        Refuse a dataset with bad rows, unless the configuration leaves them out.

        Raises:
            DataError: Says how many, and names the first.
        """
        if self.refused:
            first = self.refused[0]
            raise DataError(
                f"{len(self.refused)} of {self.num_rows} rows cannot be used; the first: {first.place}: {first.reason}"
            )


def inspect(
    path: Path, data: Data | None = None, *, count_tokens: CountTokens | None = None, max_tokens: int | None = None
) -> Inspection:
    """
    Read every row of a dataset as a run would.

    Args:
        path: Parquet or JSONL.
        data: Names the columns; None takes the usual names.
        count_tokens: How long a prompt is for the policy; None tells nothing of tokens.
        max_tokens: A longer prompt cannot be used.

    Raises:
        DataError: It cannot be read at all, or lacks a column.
    """
    data = data or Data(train=str(path))
    rows = open_rows(path)
    prompts, lengths, unfit, overlong = list[Prompt](), list[int](), list[BadRow](), list[BadRow]()
    for number, found in enumerate(Dataset([rows], data).look()):
        measured = _measured(found, rows.place(number), count_tokens)
        if isinstance(measured, BadRow):
            unfit.append(measured)
            continue
        prompt, length = measured
        lengths.append(length)
        if max_tokens is not None and length > max_tokens:
            overlong.append(BadRow(rows.place(number), f"it has more than {max_tokens} tokens"))
        else:
            prompts.append(prompt)
    return Inspection(
        path=path,
        num_rows=len(rows),
        columns=rows.columns,
        data_sources=dict(Counter(prompt.data_source for prompt in prompts).most_common()),
        num_chats=sum(bool(prompt.chat) for prompt in prompts),
        prompt_chars=_quantiles([_chars(prompt) for prompt in prompts]),
        prompt_tokens=_quantiles(lengths) if count_tokens else {},
        left_behind=_left_behind(rows),
        bad=unfit + overlong,
        refused=[
            *(unfit if data.on_bad_row == "refuse" else []),
            *(overlong if not data.filter_overlong_prompts else []),
        ],
    )


def unusable(bad: Sequence[BadRow]) -> list[str]:
    """Lines that say why rows cannot be used, how many, and where the first of each kind are."""
    if not bad:
        return ["  every row can be used"]
    reasons = by_reason(bad)
    lines = [f"  {len(bad)} {'row' if len(bad) == 1 else 'rows'} cannot be used"]
    for reason, count in list(reasons.items())[:SHOWN]:
        first = next(row.place for row in bad if row.reason == reason)
        lines.append(f"    {count:>6}  {reason}: {first}{', ...' if count > 1 else ''}")
    if len(reasons) > SHOWN:
        lines.append(f"    and for {len(reasons) - SHOWN} more reasons")
    return lines


def _measured(found: Prompt | BadRow, place: str, count_tokens: CountTokens | None) -> tuple[Prompt, int] | BadRow:
    """With its length; 0 if nobody counts."""
    if isinstance(found, BadRow):
        return found
    try:
        return found, count_tokens(found) if count_tokens else 0
    except AsyncrlError as error:
        return BadRow(place, str(error))


def _left_behind(rows: Rows) -> dict[str, int]:
    if "extra_info" not in rows.columns:
        return {}
    counts = Counter[str]()
    for number in range(len(rows)):
        try:
            counts.update(left_behind(rows[number].get("extra_info")))
        except DataError:  # Told among the bad rows.
            continue
    return dict(counts.most_common())


def _chars(prompt: Prompt) -> int:
    return len(prompt.text) + sum(len(turn["content"]) for turn in prompt.chat)


def _listed(counts: dict[str, int]) -> str:
    return "   ".join(f"{name} {count}" for name, count in counts.items())


def _quantiles(values: Sequence[int]) -> dict[str, int]:
    """The value at each quantile, nearest rank: always one that occurs."""
    ordered = sorted(values)
    return {name: ordered[round(share * (len(ordered) - 1))] for name, share in QUANTILES.items()} if ordered else {}
