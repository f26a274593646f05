"""
Column of turns in the parquet files of samples and evaluations; empty for a single completion.

    turns: [{parent: -1, observation: "", text: "...", reward: 0.0, num_context: 0, num_written: 7, ...}, ...]
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from asyncrl.messages.trajectory import Turn

if TYPE_CHECKING:  # importing pyarrow takes a tenth of a second
    import pyarrow as pa

TurnCell = list[dict[str, Any]]


def turn_cell(turns: Iterable[Turn]) -> TurnCell:
    """Cell with these turns."""
    return [structs.asdict(turn) for turn in turns]


def turns_of(cell: TurnCell | None) -> list[Turn]:
    """Turns of a cell; raises TypeError if it holds something else."""
    return [Turn(**turn) for turn in cell or []]


def turn_type() -> "pa.DataType":
    """Arrow type of the column."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    count, number, text = pa.int32(), pa.float64(), pa.string()
    fields = [("parent", count), ("num_context", count), ("num_written", count), ("reward", number)]
    fields += [("is_trained", pa.bool_()), ("call_s", number), ("observation", text), ("text", text)]
    return pa.list_(pa.struct(fields))
