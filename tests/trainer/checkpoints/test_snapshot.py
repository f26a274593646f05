from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.errors import BrokenInvariant, LedgerError
from asyncrl.trainer.checkpoints.snapshot import (
    DTYPES,
    OPTIMIZER,
    TENSORS,
    CheckpointPart,
    OwnPart,
    divide,
    emptied,
    host_copy,
    open_tensors,
    read_rows,
    stem_of,
    write_tensors,
)
from asyncrl.trainer.learner import Learner


def test_files_are_numbered_as_hugging_face_numbers_them() -> None:
    assert CheckpointPart().file("model") == "model.safetensors"
    assert CheckpointPart(1, 3).file("model") == "model-00002-of-00003.safetensors"


def test_the_stem_of_a_file_is_that_it_was_named_by() -> None:
    assert {
        stem_of(part.file("critic_optimizer"))
        for part in (CheckpointPart(), CheckpointPart(0, 2), CheckpointPart(11, 12))
    } == {"critic_optimizer"}


def test_parts_are_contiguous_and_about_equal() -> None:
    sizes = {str(number): 10 + number for number in range(20)}
    parts = divide(sizes, 4)
    assert list(parts.values()) == sorted(parts.values())
    loads = [sum(sizes[name] for name, part in parts.items() if part == index) for index in range(4)]
    assert max(loads) - min(loads) <= max(sizes.values())


def test_all_is_one_part_of_one_rank_and_nothing_divides_into_nothing() -> None:
    assert divide({"a": 1, "b": 0}, 1) == {"a": 0, "b": 0}
    assert divide({}, 3) == {}
    assert divide({"a": 0}, 3) == {"a": 0}


# ── test snapshot ─────────────────────────────────────────────────────────────────────────────


def test_a_copy_has_memory_of_its_own() -> None:
    weight = torch.arange(6.0).view(2, 3)
    copy, turned = host_copy(weight), host_copy(weight.t())
    weight.zero_()
    assert copy.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert turned.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert turned.is_contiguous()


SIZES = {"a": 4, "b": 1, "c": 3}
PARTS = {"a": 0, "b": 1, "c": 1}


def taken(part: CheckpointPart, folder: Path | None) -> tuple[dict[str, Tensor], list[str]]:
    """What a part returns of three tensors, and the files it writes. It reads all three."""
    read, own = [], OwnPart(part, folder)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, size in SIZES.items():
            read.append(name)
            yield name, torch.ones(size)

    found = own.take("model", PARTS, emptied(dict(tensors())), tensors())
    assert read[3:] == [*SIZES]
    return found, own.files


def test_each_tensor_is_copied_by_one_part_and_read_by_all() -> None:
    assert [sorted(taken(CheckpointPart(index, 2), None)[0]) for index in range(2)] == [["a"], ["b", "c"]]


def test_each_tensor_is_written_by_one_part(tmp_path: Path) -> None:
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [taken(CheckpointPart(index, 2), tmp_path) for index in range(2)] == [({}, [file]) for file in files]
    assert [sorted(load_file(tmp_path / file)) for file in files] == [["a"], ["b", "c"]]


def test_a_rank_of_another_machine_has_no_part(tmp_path: Path) -> None:
    assert taken(CheckpointPart(2, 2), tmp_path) == ({}, [])
    assert not list(tmp_path.iterdir())


def test_a_snapshot_in_files_is_the_one_in_memory(config, model_path, make_trajectories, tmp_path):
    learner = Learner(config(), model_path)
    learner.train(make_trajectories())
    (tmp_path / TENSORS).mkdir()
    copied, written = learner.snapshot(), learner.snapshot(tmp_path)
    assert (written.weights, written.tensors) == ({}, {OPTIMIZER: {}})
    for file, tensors in zip(written.files, (copied.weights, copied.tensors[OPTIMIZER]), strict=True):
        found = load_file(tmp_path / file)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_snapshot_contains_weights_moments_and_random_state(config, model_path, make_trajectories):
    learner = Learner(config(), model_path)
    learner.train(make_trajectories())
    snapshot = learner.snapshot()
    assert snapshot.weights.keys() == snapshot.weight_parts.keys() == {spec.name for spec in learner.policy.specs()}
    assert {name.rpartition("/")[2] for name in snapshot.tensors[OPTIMIZER]} == {"step", "exp_avg", "exp_avg_sq"}
    assert snapshot.random_state == torch.get_rng_state().numpy().tobytes()


# ── test stored ───────────────────────────────────────────────────────────────────────────────


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


# ── test tensor file ──────────────────────────────────────────────────────────────────────────
# A file written tensor by tensor is the one that safetensors writes from all of them.


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
