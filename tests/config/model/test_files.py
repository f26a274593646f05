"""Two copies of a model are the same unless a size, a small file or a header differs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.config.model.tokenizer import describe, difference
from tests.config.model.directories import write_model

WEIGHTS = "model.safetensors"


def test_a_copy_is_the_same_and_other_files_in_it_do_not_matter(tmp_path: Path) -> None:
    expected = describe(write_model(tmp_path / "a"))
    copy = write_model(tmp_path / "b")
    (copy / "README.md").write_text("mine")
    (copy / "notes.json").write_text("{}")
    assert {file.name for file in expected} >= {"config.json", "tokenizer.json", WEIGHTS}
    assert difference(copy, expected) == ""


def test_the_values_of_the_weights_are_not_compared(tmp_path: Path) -> None:
    expected = describe(write_model(tmp_path / "a"))
    weights = write_model(tmp_path / "b") / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert difference(tmp_path / "b", expected) == ""


def _rename_a_tensor(model: Path) -> None:
    raw = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(raw.replace(b"embed_tokens", b"embed_tokenz"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: (model / "config.json").unlink(), "config.json is missing"),
        (lambda model: (model / "tokenizer.json").write_text("{}"), "tokenizer.json has 2 bytes, expected "),
        (_rename_a_tensor, "the header of model.safetensors has the digest "),
        (lambda model: (model / "other.safetensors").write_bytes(bytes(8)), "other.safetensors is too many"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, change: Callable[[Path], object], said: str) -> None:
    expected = describe(write_model(tmp_path / "a"))
    copy = write_model(tmp_path / "b")
    change(copy)
    assert difference(copy, expected).startswith(said)


def test_a_directory_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert describe(tmp_path / "nowhere") == []
