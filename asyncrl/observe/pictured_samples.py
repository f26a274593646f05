"""Samples with pictures from the newest samples file, one for each group, for the report."""

from pathlib import Path

from msgspec import Struct

from asyncrl.errors import LedgerError

SHOWN = 8
"""Most samples that are returned."""


class PicturedSample(Struct, frozen=True, kw_only=True):
    step: int
    prompt: str
    completion: str
    answer: str
    reward: float
    files: list[bytes]
    """Pictures of the prompt, in order."""


def read_pictured_samples(folder: Path) -> list[PicturedSample]:
    """Read the first samples with pictures of the newest file. Raises `LedgerError` if the file is damaged."""
    import pyarrow as pa  # noqa: PLC0415  takes a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    if not (paths := sorted(folder.glob("step_*.parquet"))):
        return []
    columns = [*PicturedSample.__struct_fields__[:-1], "images"]
    try:
        if "images" not in pq.read_schema(paths[-1]).names:
            return []
        rows = pq.read_table(paths[-1], columns=columns).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{paths[-1]} cannot be read: {str(error).partition(chr(10))[0]}") from error
    with_files = [(row, [image["bytes"] for image in row.pop("images")]) for row in rows]
    return [PicturedSample(**row, files=files) for row, files in with_files if files and all(files)][:SHOWN]
