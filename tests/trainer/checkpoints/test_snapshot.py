from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from asyncrl.trainer.checkpoints.parts import TENSORS, Part
from asyncrl.trainer.checkpoints.snapshot import OPTIMIZER, OwnPart, emptied, host_copy
from asyncrl.trainer.learner import Learner


def test_a_copy_has_memory_of_its_own() -> None:
    weight = torch.arange(6.0).view(2, 3)
    copy, turned = host_copy(weight), host_copy(weight.t())
    weight.zero_()
    assert copy.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert turned.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert turned.is_contiguous()


SIZES = {"a": 4, "b": 1, "c": 3}
PARTS = {"a": 0, "b": 1, "c": 1}


def taken(part: Part, folder: Path | None) -> tuple[dict[str, Tensor], list[str]]:
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
    assert [sorted(taken(Part(index, 2), None)[0]) for index in range(2)] == [["a"], ["b", "c"]]


def test_each_tensor_is_written_by_one_part(tmp_path: Path) -> None:
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [taken(Part(index, 2), tmp_path) for index in range(2)] == [({}, [file]) for file in files]
    assert [sorted(load_file(tmp_path / file)) for file in files] == [["a"], ["b", "c"]]


def test_a_rank_of_another_machine_has_no_part(tmp_path: Path) -> None:
    assert taken(Part(2, 2), tmp_path) == ({}, [])
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
    assert snapshot.weights.keys() == snapshot.weight_parts.keys() == {spec.name for spec in learner.specs()}
    assert {name.rpartition("/")[2] for name in snapshot.tensors[OPTIMIZER]} == {"step", "exp_avg", "exp_avg_sq"}
    assert snapshot.random_state == torch.get_rng_state().numpy().tobytes()
