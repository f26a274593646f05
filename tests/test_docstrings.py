"""Docstrings of the package open with their subject or verb, and can be read with the file closed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "asyncrl").rglob("*.py"))
RIDDLES = frozenset({"what", "of", "whom", "whose", "who", "how", "whether", "as", "where", "so", "those", "by", "why"})
"""Opening words that hide the subject of a sentence."""
ELSEWHERE = frozenset({"it", "its", "they", "them", "their", "such", "args"})
"""Opening words whose subject stands in another place, if anywhere: a name, the class, or the line above."""
AS_ABOVE = re.compile(
    r"(the same|all of (it|them))([.,:;]| (as|at|by|each|for|from|in|of|on|to|where|with|without)\b)", re.I
)
"""Openings that repeat another docstring. `The same message with ...` has its noun."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, including those of attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for child in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield child.lineno, text.strip()


def opens_with_a_riddle(text: str) -> bool:
    first = text.split(maxsplit=1)[0].strip(".,:;`").lower() if text else ""
    return first in RIDDLES | ELSEWHERE or bool(AS_ABOVE.match(text))


@pytest.mark.parametrize(
    ("text", "is_riddle"),
    [
        ("Of its tokens.", True),
        ("What a verifier is.", True),
        ("``what`` is quoted.", True),
        ("Its folder.", True),
        ("Args:\n    name: Name.", True),
        ("The same in words.", True),
        ("The same message, with each text made fit.", False),
        ("Oldest version in its tokens.", False),
        ("", False),
    ],
)
def test_an_opening_is_judged_by_its_first_words(text: str, is_riddle: bool) -> None:
    assert opens_with_a_riddle(text) == is_riddle


def test_docstrings_open_with_their_subject_or_verb() -> None:
    every = ((path.relative_to(ROOT), line, text) for path in SOURCES for line, text in docstrings(path))
    assert [f"{path}:{line}: {text}" for path, line, text in every if opens_with_a_riddle(text)] == []
