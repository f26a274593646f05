"""
Conversion of published datasets to parquet in verl's row schema.

    file ─▶ rows ─▶ problem ─▶ {data_source, prompt, ability, reward_model, extra_info} ─▶ parquet
                       └─▶ bad rows, each with place and reason

Each dataset has a module with a `PublishedDataset`, which describes its rows; everything else is here.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.data.census import Remarks
from asyncrl.data.dataset import BadRow
from asyncrl.data.row import chat_of, repeated_keys
from asyncrl.data.table import Row, Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.files.atomic import output

SHOWN = 5
"""Bad rows listed in an error."""
ROWS_WITH_IMAGES = 128
"""Rows of a row group in a file with pictures, few because readers load a whole group at once."""

Chat = list[dict[str, str]]


class PublishedProblem(Struct, frozen=True, kw_only=True):
    prompt: str | Chat
    """Without the dataset's instruction."""
    answer: str
    extra: dict[str, str | int | float | bool | None] = {}
    image: bytes | None = None
    image_name: str = ""
    tools: str = ""
    """`Prompt.tools`."""
    remarks: Sequence[str] = ()
    """Clauses about the row, as `asyncrl.data.row.remarks`."""


class PublishedDataset(Struct, frozen=True, kw_only=True):
    """Description of a dataset in its published form."""

    data_source: str
    """verl's name of the dataset, which selects the verifier."""
    problem: Callable[[Row], PublishedProblem]
    """Converts a row; raises `DataError` if the row is unusable."""
    instruction: str = ""
    """Appended to each prompt: the required form of the answer."""
    ability: str = "math"
    repeats: bool = False
    """Prompts are repeated; each is kept once."""
    open: Callable[[Path], Rows] = open_rows


class PrepareResult(Struct, frozen=True, kw_only=True):
    path: Path
    num_read: int
    num_rows: int
    num_repeated: int
    bad: list[BadRow]
    odd: list[str]
    """Sentences about rows that were written, as of `asyncrl.data.census.Remarks`."""


def prepare(
    dataset: PublishedDataset,
    source: Path,
    out: Path,
    *,
    split: str = "",
    instruction: str | None = None,
    is_chat: bool = True,
    skip_bad: bool = False,
) -> PrepareResult:
    """
    Convert a dataset to parquet.

    Args:
        source: Path that ``dataset.open`` accepts.
        out: Replaced atomically; untouched if there is an error.
        split: For ``extra_info``; empty takes the name of ``source``.
        instruction: Replaces the dataset's own; empty adds none.
        is_chat: Write prompts as one user message; otherwise as plain text, for models without a chat template.
        skip_bad: Leave out bad rows; otherwise they are an error.

    Raises:
        DataError: ``source`` cannot be read, or has bad rows.
    """
    rows = dataset.open(source)
    added = dataset.instruction if instruction is None else instruction
    written, bad, first = list[Row](), list[BadRow](), dict[bytes, tuple[str, str]]()
    remarks = Remarks()
    for number in range(len(rows)):
        place = rows.place(number)
        try:
            problem = dataset.problem(rows[number])
            prompt = _prompt(problem.prompt, added, is_chat=is_chat)
            row = _row(dataset, problem, prompt, {"split": split or source.stem, "index": number})
            if dataset.repeats and _is_repeated(prompt, problem.answer, place, first):
                continue
        except DataError as error:
            bad.append(BadRow(place, str(error).removeprefix(f"{place}: ")))
        else:
            remarks.add([*repeated_keys(rows, number), *problem.remarks], place)
            written.append(row)
    if bad and (not skip_bad or not written):
        raise DataError(_refusal(bad, len(rows)))
    write(written, out)
    return PrepareResult(
        path=out,
        num_read=len(rows),
        num_rows=len(written),
        num_repeated=len(rows) - len(written) - len(bad),
        bad=bad,
        odd=remarks.sentences(len(written)),
    )


def written_row(dataset: PublishedDataset, problem: PublishedProblem, *, split: str, number: int) -> Row:
    """The row of a problem: a chat of one message, with the dataset's instruction."""
    prompt = _prompt(problem.prompt, dataset.instruction, is_chat=True)
    return _row(dataset, problem, prompt, {"split": split, "index": number})


def text_of(row: Row, *keys: str) -> list[str]:
    """Values of columns; raises `DataError` for one that is missing, empty or not text."""
    for key in keys:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise DataError(f"{key!r} is missing, or not text")
    return [row[key] for key in keys]


def write(rows: Sequence[Row], out: Path) -> None:
    """
    Write rows as parquet.

    Raises:
        ConfigError: ``out`` cannot be written.
        DataError: Rows have values of different types in one column.
    """
    import pyarrow as pa  # noqa: PLC0415 - takes a tenth of a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    group_rows = ROWS_WITH_IMAGES if any("images" in row for row in rows) else None
    try:
        names = dict.fromkeys(name for row in rows for name in row)  # `from_pylist` would take those of the first
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
    except pa.ArrowException as error:
        raise DataError(f"{error}, but parquet has one type for each column: write its values as texts") from error
    with output(out, durable=True) as unfinished:
        pq.write_table(table, unfinished, compression="zstd", row_group_size=group_rows)


def _prompt(prompt: str | Chat, instruction: str, *, is_chat: bool) -> str | Chat:
    chat = chat_of(prompt) if isinstance(prompt, str) else prompt
    if instruction:
        last = chat[-1]
        chat = [*chat[:-1], last | {"content": f"{last['content']} {instruction}"}]
    if is_chat:
        return chat
    if len(chat) > 1:
        raise DataError(f"a chat of {len(chat)} messages cannot be plain text")
    return chat[0]["content"]


def _is_repeated(prompt: str | Chat, answer: str, place: str, first: dict[bytes, tuple[str, str]]) -> bool:
    """Return True for a repetition; raise `DataError` if the prompt has had another answer."""
    known, first_place = first.setdefault(msgspec.json.encode(prompt), (answer, place))
    if known != answer:
        raise DataError(f"its answer is {answer!r:.40}, but {known!r:.40} in {first_place}, which has the same prompt")
    return first_place != place


def _row(dataset: PublishedDataset, problem: PublishedProblem, prompt: str | Chat, info: dict[str, Any]) -> Row:
    image = {"images": [{"bytes": problem.image, "path": problem.image_name}]} if problem.image else {}
    if problem.tools and isinstance(prompt, str):
        raise DataError("it has tools, and plain text has no place for them: leave --text out")
    return {
        "data_source": dataset.data_source,
        "prompt": prompt,
        **image,
        **({"tools": problem.tools} if problem.tools else {}),
        "ability": dataset.ability,
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": info | problem.extra,
    }


def _refusal(bad: Sequence[BadRow], num_rows: int) -> str:
    named = "; ".join(f"{row.place}: {row.reason}" for row in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return f"{len(bad)} of {num_rows} rows cannot be used, and nothing was written: {named}{more}"


# ── boxed ─────────────────────────────────────────────────────────────────────────────────────
# Extraction of the answer of a worked solution: the content of the last ``\boxed{...}``.

_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")


def last_boxed(text: str) -> str | None:
    r"""Content of the last box, braces balanced; also of ``\fbox{...}`` and ``\boxed 5``. None without a whole box."""
    boxes = list(_BOX.finditer(text))
    return _content(text, boxes[-1].end()) if boxes else None


def _content(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        bare = re.compile(r"[^\s$.,}]+").match(text, start)
        return bare[0] if bare else None
    depth = 0
    for place in re.compile(r"\\.|[{}]").finditer(text, start):  # an escaped brace is part of the answer
        depth += {"{": 1, "}": -1}.get(place[0], 0)
        if not depth:
            return text[start + 1 : place.start()].strip()
    return None


# ── competition math ──────────────────────────────────────────────────────────────────────────
# MATH, and datasets of the same form.
#
#     {"problem": "...", "solution": "... so $x = \boxed{\frac{1}{2}}$.", "level": "Level 3", "type": "Algebra"}
#         ──▶  answer "\frac{1}{2}"
#
# Source:
#     Hendrycks et al. 2021, arXiv:2103.03874. Data source and instruction are verl's, to make results comparable.

DESCRIPTION = ("level", "type", "subject", "unique_id")
"""Columns that describe the problem; each release of the dataset has some of them."""


def _competition_problem(row: Row) -> PublishedProblem:
    problem, solution = text_of(row, "problem", "solution")
    answer = last_boxed(solution)
    if not answer:
        raise DataError(r"its solution has no \boxed{} with an answer in it")
    return PublishedProblem(prompt=problem, answer=answer, extra={key: row[key] for key in DESCRIPTION if key in row})


MATH = PublishedDataset(
    data_source="DigitalLearningGmbH/MATH-lighteval",
    problem=_competition_problem,
    instruction=r"Let's think step by step and output the final answer within \boxed{}.",
)


# ── dapo math ─────────────────────────────────────────────────────────────────────────────────
# DAPO-Math.
#
# It is published in verl's row schema, with its instruction (a last line ``Answer: ...``) in the prompts, and each of
# its 17 thousand prompts about a hundred times. Here each prompt is kept once; epochs repeat them.
#
# Source:
#     Yu et al. 2025, arXiv:2503.14476, section 4.1.


def _dapo_problem(row: Row) -> PublishedProblem:
    model, info = row.get("reward_model"), row.get("extra_info")
    answer = model.get("ground_truth") if isinstance(model, dict) else None
    if not isinstance(answer, str | int) or not str(answer).strip():
        raise DataError("'reward_model.ground_truth' is missing, or neither text nor a number")
    index = info.get("index") if isinstance(info, dict) else None
    return PublishedProblem(prompt=_chat(row.get("prompt")), answer=str(answer).strip(), extra={"id": str(index or "")})


def _chat(prompt: Any) -> Chat:
    if not isinstance(prompt, list) or not prompt or not all(isinstance(turn, dict) for turn in prompt):
        raise DataError("'prompt' is not a chat")
    turns = [{key: turn.get(key) for key in ("role", "content")} for turn in prompt]
    if not all(isinstance(value, str) and value for turn in turns for value in turn.values()):
        raise DataError("'prompt' has a message without role or content")
    return turns


DAPO_MATH = PublishedDataset(data_source="math_dapo", problem=_dapo_problem, repeats=True)


# ── gsm8k ─────────────────────────────────────────────────────────────────────────────────────
# GSM8K.
#
#     {"question": "...", "answer": "She sold 48 / 2 = 24 ... #### 72"}  ──▶  answer "72"
#
# Source:
#     Cobbe et al. 2021, arXiv:2110.14168. Instruction and extra information are verl's, to make results comparable.

_FINAL = re.compile(r"#### (-?\d[\d,]*(?:\.\d+)?)\s*$")


def _gsm8k_problem(row: Row) -> PublishedProblem:
    question, solution = text_of(row, "question", "answer")
    final = _FINAL.search(solution)
    if final is None:
        raise DataError(f"the answer must end in '#### ' and a number, but ends in {solution[-20:]!r}")
    answer = final[1].replace(",", "")
    return PublishedProblem(prompt=question, answer=answer, extra={"answer": solution, "question": question})


GSM8K = PublishedDataset(
    data_source="openai/gsm8k",
    problem=_gsm8k_problem,
    instruction='Let\'s think step by step and output the final answer after "####".',
)
