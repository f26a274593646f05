"""Equality of answers in LaTeX."""

from pathlib import Path

import pytest

from asyncrl.errors import VerifierError
from asyncrl.reward.answers.same_value import compare


def test_a_row_without_an_answer_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(VerifierError, match="no answer"):
        compare("5", " $$ ")


@pytest.mark.parametrize("form", ["{}", "\\text{{{}}}", "1 + {}", "x = {}"])
def test_text_that_looks_like_python_is_not_run(form: str, tmp_path: Path) -> None:
    compare(form.format(f"__import__('pathlib').Path('{tmp_path}/owned').touch()"), "5")

    assert not (tmp_path / "owned").exists()
