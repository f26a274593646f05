"""
GSM8K as a dataset to train on.

    {"question": "...", "answer": "She sold 48 / 2 = 24 ... #### 72"}
        ──▶  prompt "... output the final answer after "####".", answer "72", solution "She sold ..."

Source:
    Cobbe et al. 2021, arXiv:2110.14168. The instruction behind each question is the one verl uses, so that results
    can be compared.
"""

import re
from pathlib import Path

from asyncrl.data.table import JsonRows, Row, open_rows
from asyncrl.errors import DataError
from asyncrl.observe.atomic import replacing

INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'
DATA_SOURCE = "openai/gsm8k"
SHOWN = 5
"""How many bad lines one error names."""

_FINAL = re.compile(r"#### (-?\d[\d,]*(?:\.\d+)?)\s*$")


def prepare(jsonl_path: Path, out_path: Path) -> int:
    """
    Write GSM8K's JSONL as parquet with the columns prompt, answer, data_source and solution.

    Args:
        jsonl_path: Lines with ``question`` and ``answer``, as published.
        out_path: Replaced at once, and only if every line is good.

    Returns:
        The number of rows.

    Raises:
        DataError: The file cannot be read, or has bad lines; names the first of them.
    """
    lines = open_rows(jsonl_path)
    if not isinstance(lines, JsonRows):
        raise DataError(f"{jsonl_path} is parquet already; GSM8K is prepared from its JSONL files")
    rows, problems = [], []
    for number in range(len(lines)):
        try:
            rows.append(_row(lines, number))
        except DataError as error:
            problems.append(str(error))
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise DataError("; ".join(problems[:SHOWN]) + more)
    _write(rows, out_path)
    return len(rows)


def _row(lines: JsonRows, number: int) -> Row:
    line = lines[number]
    for key in ("question", "answer"):
        if not isinstance(line.get(key), str):
            raise DataError(f"{lines.place(number)}: {key!r} is missing, or not text")
    final = _FINAL.search(line["answer"])
    if final is None:
        end = line["answer"][-20:]
        raise DataError(f"{lines.place(number)}: the answer must end in '#### ' and a number, but ends in {end!r}")
    return {
        "prompt": line["question"] + INSTRUCTION,
        "answer": final[1].replace(",", ""),
        "data_source": DATA_SOURCE,
        "solution": line["answer"],
    }


def _write(rows: list[Row], out_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - a tenth of a second that `asyncrl --help` need not wait for
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with replacing(out_path) as unfinished:
            pq.write_table(pa.Table.from_pylist(rows), unfinished, compression="zstd")
    except OSError as error:
        raise DataError(f"cannot write {out_path}: {error.strerror}") from error
