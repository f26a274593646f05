r"""
Geometry3K: a problem, its diagram, and four choices, one of which is the answer.

    train/11/data.json         {"annotat_text": "Find $x$.", "choices": ["12", "13"], "answer": "B"}  ──▶  answer "13"
    train/11/img_diagram.png   ──▶  images

Another release is parquet with the columns ``problem``, ``answer`` and ``images``; it is read too. A prompt begins with
the mark of its diagram, unless the problem has it elsewhere.

Source:
    Lu et al. 2021, arXiv:2105.04165. Data source and instruction are verl's, to make results comparable.
"""

import string
from pathlib import Path

from asyncrl.data.images import ImageFiles
from asyncrl.data.prepare.published import PublishedDataset, PublishedProblem, text_of
from asyncrl.data.table import Row, Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.files.foreign import read_json, within
from asyncrl.messages.trajectory import IMAGE_MARK

INFO, DIAGRAM = "data.json", "img_diagram.png"


class ProblemFolders(Rows):
    """`Rows` of a folder of numbered folders, in numeric order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = ["annotat_text", "choices", "answer", "images"]
        folders = (found.parent for found in path.glob(f"*/{INFO}"))
        self._folders = sorted(folders, key=lambda one: (int(one.name) if one.name.isdecimal() else 0, one.name))

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, row: int, /) -> Row:
        folder = self._folders[row]
        try:
            info = read_json(within(folder, INFO), Row)
            return info | {"images": [{"bytes": ImageFiles(folder / INFO).read(DIAGRAM), "path": f"{folder.name}.png"}]}
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    def place(self, row: int, /) -> str:
        return str(self._folders[row])


def _open(source: Path) -> Rows:
    if not source.is_dir():
        return open_rows(source)
    folders = ProblemFolders(source)
    if not len(folders):
        raise DataError(f"{source} has no folders with a {INFO} in them; give the folder of one split")
    return folders


def _problem(row: Row) -> PublishedProblem:
    if row.get("annotat_text") is None:
        question, answer = text_of(row, "problem", "answer")
    else:
        (question,), answer = text_of(row, "annotat_text"), _choice(row)
    if IMAGE_MARK not in question:
        question = IMAGE_MARK + question
    images = row.get("images") or []
    if len(images) != 1 or not isinstance(images[0], dict) or not images[0].get("bytes"):
        raise DataError("it must have exactly one image, with its bytes")
    return PublishedProblem(
        prompt=question,
        answer=answer,
        extra={"answer": answer, "question": question},
        image=images[0]["bytes"],
        image_name=images[0].get("path") or "",
    )


def _choice(row: Row) -> str:
    (letter,) = text_of(row, "answer")
    choices = row.get("choices")
    place = string.ascii_uppercase.find(letter)
    if not isinstance(choices, list) or len(letter) != 1 or not 0 <= place < len(choices):
        raise DataError(f"its answer {letter!r:.20} is not one of its choices")
    return str(choices[place]).strip()


GEO3K = PublishedDataset(
    data_source="hiyouga/geometry3k",
    problem=_problem,
    open=_open,
    instruction=(
        "You FIRST think about the reasoning process as an internal monologue and then provide the final answer. The "
        r"reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in \boxed{}."
    ),
)
