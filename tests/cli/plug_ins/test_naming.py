"""A file alone names its function, if there is no doubt."""

from pathlib import Path

import pytest

from asyncrl.cli.plug_ins.naming import full_name
from asyncrl.errors import ConfigError


@pytest.mark.parametrize("name", ["gsm8k", "my.py:score", "package.module:score"])
def test_a_full_name_is_kept(name: str) -> None:
    assert full_name(name, ()) == name


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("def only(x): ...\ndef _hidden(): ...", "only"), ("def other(x): ...\nasync def score(x): ...", "score")],
)
def test_a_file_means_its_only_function_or_the_one_with_a_usual_name(tmp_path: Path, text: str, chosen: str) -> None:
    path = tmp_path / "my.py"
    path.write_text(text)
    assert full_name(str(path), ("compute_score", "score")) == f"{path}:{chosen}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def a(): ...\ndef b(): ...", "several functions, a, b: name the one to try, as"),
        ("x = 1", "no public function at its top level"),
        ("def (", "is no Python"),
    ],
)
def test_a_doubtful_file_is_refused_with_what_it_has(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "my.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        full_name(str(path), ())
    with pytest.raises(ConfigError, match="cannot read"):
        full_name(str(tmp_path / "none.py"), ())
