import torch

from asyncrl.trainer.checkpoints.parts import Part
from asyncrl.trainer.checkpoints.snapshot import OPTIMIZER, host_copy, own_tensors, own_weights
from asyncrl.trainer.learner import Learner


def test_a_copy_has_memory_of_its_own() -> None:
    weight = torch.arange(6.0).view(2, 3)
    copy, turned = host_copy(weight), host_copy(weight.t())
    weight.zero_()
    assert copy.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert turned.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert turned.is_contiguous()


def test_each_tensor_is_copied_by_one_part() -> None:
    tensors = {name: torch.ones(size) for name, size in {"a": 4, "b": 1, "c": 3}.items()}
    assert [sorted(own_tensors(tensors, Part(index, 2))) for index in range(2)] == [["a"], ["b", "c"]]
    assert own_tensors(tensors, Part(2, 2)) == {}, "a rank of another machine"


def test_weights_of_other_parts_are_read_and_not_kept() -> None:
    read = []

    def weights():
        for name in "ab":
            read.append(name)
            yield name, torch.ones(1)

    assert own_weights(weights(), {"a": 0, "b": 1}, Part(1, 2)).keys() == {"b"}
    assert read == ["a", "b"]


def test_a_snapshot_contains_weights_moments_and_random_state(config, model_path, make_trajectories):
    learner = Learner(config(), model_path)
    learner.train(make_trajectories())
    snapshot = learner.snapshot()
    assert snapshot.weights.keys() == snapshot.weight_parts.keys() == {spec.name for spec in learner.specs()}
    assert {name.rpartition("/")[2] for name in snapshot.tensors[OPTIMIZER]} == {"step", "exp_avg", "exp_avg_sq"}
    assert snapshot.random_state == torch.get_rng_state().numpy().tobytes()
