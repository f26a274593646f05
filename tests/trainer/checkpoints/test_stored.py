import pytest
import torch
from safetensors.torch import save_file

from asyncrl.errors import LedgerError
from asyncrl.trainer.checkpoints.stored import open_tensors, read_rows


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "trainer"
    folder.mkdir()
    save_file({"a/exp_avg": torch.arange(6.0).view(3, 2)}, folder / "optimizer-00001-of-00002.safetensors")
    save_file({"a/step": torch.tensor(7.0)}, folder / "optimizer-00002-of-00002.safetensors")
    save_file({"score": torch.ones(1)}, folder / "critic.safetensors")
    return folder


FILES = dict.fromkeys(
    [
        "model.safetensors",
        "trainer/critic.safetensors",
        "trainer/optimizer-00001-of-00002.safetensors",
        "trainer/optimizer-00002-of-00002.safetensors",
    ]
)


def test_the_parts_of_a_file_are_one(folder):
    with open_tensors(folder, FILES) as tensors:
        assert {name: sorted(found) for name, found in tensors.items()} == {
            "critic": ["score"],
            "optimizer": ["a/exp_avg", "a/step"],
        }
        assert tensors["optimizer"]["a/exp_avg"].shape == (3, 2)
        assert tensors["optimizer"]["a/exp_avg"][1:].tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_a_tensor_is_filled_also_a_scalar(folder):
    with open_tensors(folder, FILES) as tensors:
        moment, step = torch.zeros(3, 2), torch.zeros(())
        read_rows(moment, tensors["optimizer"]["a/exp_avg"])
        read_rows(step, tensors["optimizer"]["a/step"])
    assert moment.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert step.item() == 7.0


def test_a_file_that_is_damaged_or_missing_is_named(folder):
    (folder / "critic.safetensors").write_bytes(b"damaged")
    with pytest.raises(LedgerError, match=r"critic\.safetensors.*resume from an older"), open_tensors(folder, FILES):
        pass
    (folder / "critic.safetensors").unlink()
    with pytest.raises(LedgerError, match=r"critic\.safetensors"), open_tensors(folder, FILES):
        pass
