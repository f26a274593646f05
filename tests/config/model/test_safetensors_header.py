from pathlib import Path

import pytest

from asyncrl.config.model.weights import read_shapes
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_safetensors

SHAPES = {"model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,), "scale": ()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "model.safetensors", SHAPES)
    return tmp_path / "model.safetensors"


def test_names_and_shapes_are_read(file: Path) -> None:
    assert read_shapes(file) == SHAPES


def test_a_file_that_was_cut_off_is_refused_with_both_sizes(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])

    with pytest.raises(ConfigError) as refused:
        read_shapes(file)

    assert str(refused.value) == (
        f"{file} is damaged: expected {len(whole):,} bytes by its header, got {len(whole) - 7:,}; copy the model "
        f"directory again"
    )


@pytest.mark.parametrize(
    "contents",
    [b"", b"abc", bytes(100), b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"],
    ids=["empty", "shorter than its length", "zeros", "ones", "a pointer of git-lfs"],
)
def test_a_file_of_another_kind_is_refused(file: Path, contents: bytes) -> None:
    file.write_bytes(contents)
    with pytest.raises(ConfigError, match=r"is damaged: it does not begin with a safetensors header; copy the model"):
        read_shapes(file)


def test_a_header_that_claims_the_whole_memory_is_not_read(file: Path) -> None:
    file.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ConfigError, match="does not begin with a safetensors header"):
        read_shapes(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none: No such file"):
        read_shapes(tmp_path / "none")
