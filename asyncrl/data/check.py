"""
Inspection of a dataset, as ``asyncrl data check FILE`` prints it.

    train.parquet: 7473 rows
      columns        data_source, prompt, ability, reward_model, extra_info
      data sources   openai/gsm8k 7470
      prompts        7470 chat, 0 text
      prompt chars   min 109   5% 184   median 284   95% 481   max 1052
      pictures       7470   largest 1024 x 768   512.3 MB
      spelled        <|im_end|> 2
      odd            4 of 7470 rows repeat the prompt of an earlier one
      odd            7470 of 7470 rows have 'extra_info.tools_kwargs', which ...; the first: train.parquet row 0
      3 rows cannot be used
             2  'prompt' is empty: train.parquet row 17, ...
             1  it has videos, but prompts must be text and pictures: train.parquet row 90
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from asyncrl.config.sections.data import Data
from asyncrl.data.census import Census, num_chars, num_shared
from asyncrl.data.dataset import BadRow, Dataset, count_reasons
from asyncrl.data.row import chat_of
from asyncrl.data.table import open_rows
from asyncrl.data.tools import tool_names
from asyncrl.errors import AsyncrlError, DataError
from asyncrl.foreign_text import shown
from asyncrl.messages.trajectory import Image, Prompt

SHOWN = 5
"""Most frequent reasons that are listed; the others are counted."""

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}

CountTokens = Callable[[Prompt], int]
"""Counts the tokens of a prompt with the chat template applied; raises `AsyncrlError` if it cannot be encoded."""
FindSpelled = Callable[[Prompt], Sequence[str]]
"""Finds the special tokens that the texts of a chat spell."""


class Inspection(Struct, frozen=True, kw_only=True):
    path: Path
    num_rows: int
    columns: list[str]
    data_sources: dict[str, int]
    """Number of usable rows of each source, most frequent first."""
    num_without_answer: int
    """Usable rows with an empty answer, which no reward that compares with it can call correct."""
    num_chats: int
    """Usable rows whose prompt is a chat; the others are plain text."""
    num_made_chats: int
    """Number of these chats that are texts in the file, which ``data.as_chat`` makes chats."""
    prompt_chars: dict[str, int]
    """Quantiles of prompt length in characters, over usable rows; empty if there are none."""
    prompt_tokens: dict[str, int]
    """Quantiles of prompt length in tokens; empty without ``count_tokens``."""
    images: list[Image]
    """Pictures of the usable rows."""
    tools: dict[str, int]
    """Tools of the usable rows, with the number of rows that show them."""
    odd: list[str]
    """Clauses about usable rows that are unlike what one expects; see `asyncrl.data.census`."""
    keys: Sequence[int]
    """Keys of the prompts of the usable rows."""
    spelled: dict[str, int]
    """Special tokens that the texts of usable chats spell, with the number of rows; empty without ``find_spelled``."""
    bad: list[BadRow]
    refused: list[BadRow]
    """Unusable rows that the configuration does not allow."""

    @property
    def num_texts(self) -> int:
        return self.num_rows - len(self.bad) - self.num_chats

    def text(self) -> str:
        num_usable = self.num_rows - len(self.bad)
        facts = {
            "columns": ", ".join(map(shown, self.columns)),
            "data sources": _listed({name or "(none)": count for name, count in self.data_sources.items()}) or "-",
            "answers": "none of the rows has one" if self.num_without_answer == num_usable > 0 else "",
            "prompts": f"{self.num_chats - self.num_made_chats} chat, {self.num_texts + self.num_made_chats} text"
            + (", each read as a chat of one message (data.as_chat)" if self.num_made_chats else ""),
            "prompt chars": _listed(self.prompt_chars) or "-",
            "prompt tokens": _listed(self.prompt_tokens),
            "pictures": _pictures(self.images),
            "tools": _listed(self.tools),
            "spelled": _listed(self.spelled),
        }
        lines = [f"{self.path}: {self.num_rows} rows"]
        lines += [f"  {name:<13}  {fact}" for name, fact in facts.items() if fact]
        lines += [f"  {'odd':<13}  {clause}" for clause in self.odd]
        return "\n".join(lines + bad_row_lines(self.bad))

    def require_usable(self) -> None:
        """Raise `DataError` if there are bad rows, except those that the configuration leaves out."""
        if self.refused:
            first = self.refused[0]
            raise DataError(
                f"{len(self.refused)} of {self.num_rows} rows cannot be used; the first: {first.place}: {first.reason}"
            )


def inspect(
    path: Path,
    data: Data | None = None,
    *,
    count_tokens: CountTokens | None = None,
    find_spelled: FindSpelled | None = None,
    max_tokens: int | None = None,
    are_tasks: bool = False,
) -> Inspection:
    """
    Read every row of a dataset as a run would.

    Args:
        path: Parquet or JSONL.
        data: Names of the columns; None takes the defaults.
        max_tokens: Longest usable prompt.
        are_tasks: As in `Census.sentences`.

    Raises:
        DataError: The file cannot be read, or lacks a column.
    """
    data = data or Data(train=str(path))
    rows = open_rows(path, on_disk=data.image_column)
    prompts, lengths, unusable, overlong = list[Prompt](), list[int](), list[BadRow](), list[BadRow]()
    census, num_made_chats = Census(), 0
    for row, cell in zip(Dataset([rows], data).scan(), rows.column(data.prompt_column), strict=True):
        measured = _measured(row.found, row.place, count_tokens)
        if isinstance(measured, BadRow):
            unusable.append(measured)
            continue
        prompt, length = measured
        lengths.append(length)
        if max_tokens is not None and length > max_tokens:
            overlong.append(BadRow(row.place, f"it has more than {max_tokens} tokens"))
        else:
            prompts.append(prompt)
            census.add(prompt)
            census.remarks.add(row.remarks, row.place)
            num_made_chats += prompt.chat == chat_of(cell)
    spelled = Counter(text for prompt in prompts for text in set(find_spelled(prompt))) if find_spelled else Counter()
    return Inspection(
        path=path,
        num_rows=len(rows),
        columns=rows.columns,
        data_sources=dict(Counter(prompt.data_source for prompt in prompts).most_common()),
        num_without_answer=census.num_without_answer,
        num_chats=sum(bool(prompt.chat) for prompt in prompts),
        num_made_chats=num_made_chats,
        prompt_chars=_quantiles(list(map(num_chars, prompts))),
        odd=census.sentences(are_tasks=are_tasks),
        keys=() if are_tasks else census.keys,
        prompt_tokens=_quantiles(lengths) if count_tokens else {},
        images=[image for prompt in prompts for image in prompt.images],
        tools=dict(Counter(name for prompt in prompts for name in tool_names(prompt.tools)).most_common()),
        spelled=dict(spelled.most_common()),
        bad=unusable + overlong,
        refused=[
            *(unusable if data.on_bad_row == "refuse" else []),
            *(overlong if not data.filter_overlong_prompts else []),
        ],
    )


def shared_lines(inspections: Sequence[Inspection]) -> list[str]:
    """A line for each file that has prompts of an earlier one, such as a held-out file with rows of the training."""
    lines, seen = [], set[int]()
    for inspection in inspections:
        if found := num_shared(inspection.keys, seen):
            lines.append(f"{inspection.path}: {found} of {len(inspection.keys)} prompts are in a file before it too")
        seen.update(inspection.keys)
    return lines


def bad_row_lines(bad: Sequence[BadRow]) -> list[str]:
    """Format bad rows: their number, and for each reason its number of rows and the first of them."""
    if not bad:
        return ["  every row can be used"]
    reasons = count_reasons(bad)
    lines = [f"  {len(bad)} {'row' if len(bad) == 1 else 'rows'} cannot be used"]
    for reason, count in list(reasons.items())[:SHOWN]:
        first = next(row.place for row in bad if row.reason == reason)
        lines.append(f"    {count:>6}  {reason}: {first}{', ...' if count > 1 else ''}")
    if len(reasons) > SHOWN:
        lines.append(f"    and for {len(reasons) - SHOWN} more reasons")
    return lines


def _measured(found: Prompt | BadRow, place: str, count_tokens: CountTokens | None) -> tuple[Prompt, int] | BadRow:
    """Return the prompt with its number of tokens, 0 if they are not counted."""
    if isinstance(found, BadRow):
        return found
    try:
        return found, count_tokens(found) if count_tokens else 0
    except AsyncrlError as error:
        return BadRow(place, shown(str(error)))


def _pictures(images: Sequence[Image]) -> str:
    """Number of pictures, size of the largest, and bytes of all distinct ones; empty if there are none."""
    if not images:
        return ""
    largest = max(images, key=lambda image: image.width * image.height)
    num_bytes = sum({image.digest: image.num_bytes for image in images}.values())
    return f"{len(images)}   largest {largest.width} x {largest.height}   {num_bytes / 1e6:.1f} MB"


def _listed(counts: dict[str, int]) -> str:
    return "   ".join(f"{shown(name)} {count}" for name, count in counts.items())


def _quantiles(values: Sequence[int]) -> dict[str, int]:
    """Return the value at each quantile by nearest rank, so always one that occurs."""
    ordered = sorted(values)
    return {name: ordered[round(share * (len(ordered) - 1))] for name, share in QUANTILES.items()} if ordered else {}
