"""A file written tensor by tensor is the one that safetensors writes from all of them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.errors import BrokenInvariant
from asyncrl.trainer.checkpoints.tensor_file import DTYPES, write_tensors


def empty(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def test_the_file_is_byte_for_byte_that_of_safetensors_in_whatever_order_tensors_come(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(7), "steps": torch.tensor(3), "none": torch.empty(0, 4)}
    save_file(tensors, tmp_path / "whole", metadata={"format": "pt"})
    write_tensors(tmp_path / "streamed", empty(tensors), tensors.items())
    assert (tmp_path / "streamed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_every_dtype_is_read_back_as_it_was(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.arange(-3, 4).to(dtype) for dtype in DTYPES}
    write_tensors(tmp_path / "file", empty(tensors), tensors.items())
    found = load_file(tmp_path / "file")
    assert {name: tensor.dtype for name, tensor in found.items()} == {str(dtype): dtype for dtype in DTYPES}
    assert all(torch.equal(found[name].double(), tensor.double()) for name, tensor in tensors.items())


def test_a_view_is_written_as_what_it_shows_and_other_tensors_are_left_out(tmp_path: Path) -> None:
    turned = torch.arange(6.0).view(2, 3).t()
    write_tensors(tmp_path / "file", empty({"a": turned}), [("other", torch.ones(1)), ("a", turned)])
    found = load_file(tmp_path / "file")
    assert found.keys() == {"a"}
    assert torch.equal(found["a"], turned)


@pytest.mark.parametrize(
    ("came", "words"), [({}, "a did not come"), ({"a": torch.ones(3)}, r"a is torch.float32 \(3,\)")]
)
def test_a_tensor_that_does_not_come_as_announced_is_refused(
    tmp_path: Path, came: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(BrokenInvariant, match=words):
        write_tensors(tmp_path / "file", empty({"a": torch.ones(2)}), came.items())
