"""Values of weights that a dry run looks at."""

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.model.values import BLOCK, NOT_FINITE, check_values
from asyncrl.config.model.weights import BITS
from asyncrl.errors import ConfigError
from tests.config.model.directories import write_safetensors

INFINITE = {
    "F16": b"\x00\x7c",
    "BF16": b"\x80\x7f",
    "F32": struct.pack("<f", float("inf")),
    "F64": b"\0" * 6 + b"\xf0\x7f",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "f", {"a": (3, 7), "b": (5,), "none": (0, 4)})
    return tmp_path / "f"


def test_finite_values_are_counted(file: Path) -> None:
    assert check_values([file, file]) == "52 values looked at, all finite"


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000, 0x7F800001], ids=hex)
@pytest.mark.parametrize("place", [0, 20, 25])
def test_a_value_that_is_not_finite_is_named_by_its_tensor(file: Path, bits: int, place: int) -> None:
    content = bytearray(file.read_bytes())
    start = len(content) - 26 * 4 + place * 4
    content[start : start + 4] = bits.to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=f"/f: {'a' if place < 21 else 'b'} has values that are NaN or infinite; copy"
    ):
        check_values([file])


@given(st.floats(width=32))
def test_what_is_finite_is_what_python_says(value: float) -> None:
    bits = int.from_bytes(struct.pack("<f", value), "little")
    assert (bits & NOT_FINITE["F32"] == NOT_FINITE["F32"]) == (not math.isfinite(value))


@pytest.mark.parametrize("dtype", INFINITE)
def test_every_float_is_looked_at(tmp_path: Path, dtype: str) -> None:
    one = INFINITE[dtype]
    assert len(one) * 8 == BITS[dtype]
    header = f'{{"w":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,{2 * len(one)}]}}}}'.encode()
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + bytes(len(one)) + one)
    with pytest.raises(ConfigError, match="/f: w has values"):
        check_values([tmp_path / "f"])


def test_of_a_large_tensor_beginning_middle_and_end_are_looked_at(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "f", {"a": (BLOCK,)})
    assert check_values([tmp_path / "f"]) == f"{3 * BLOCK // 4:,} of {BLOCK:,} values looked at, all finite"
