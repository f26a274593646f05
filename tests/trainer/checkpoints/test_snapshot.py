import torch

from asyncrl.trainer.checkpoints.snapshot import OPTIMIZER, host_copy
from asyncrl.trainer.learner import Learner


def test_a_copy_has_memory_of_its_own() -> None:
    weight = torch.arange(6.0).view(2, 3)
    copy = host_copy({"w": weight, "turned": weight.t()})
    weight.zero_()
    assert copy["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert copy["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert copy["turned"].is_contiguous()


def test_tied_tensors_stay_tied_and_others_apart() -> None:
    weight = torch.ones(2)
    copy = host_copy({"embedding": weight, "head": weight.detach(), "first": weight[:1], "a": torch.empty(0)})
    assert copy["embedding"] is copy["head"]
    assert copy["first"].data_ptr() != copy["embedding"].data_ptr()
    assert copy["a"].numel() == 0


def test_tied_tensors_without_elements_are_one_as_well() -> None:
    """A rank's part of a sharded tensor may be empty, and it must gather it as often as the other ranks."""
    part = torch.empty(0, 4)
    copy = host_copy({"embedding": part, "head": part.detach(), "another": torch.empty(0, 4)})
    assert copy["embedding"] is copy["head"]
    assert copy["another"] is not copy["head"]


def test_a_snapshot_contains_weights_moments_and_random_state(config, model_path, make_trajectories):
    learner = Learner(config(), model_path)
    learner.train(make_trajectories())
    snapshot = learner.snapshot()
    assert snapshot.weights.keys() == learner.policy.model.state_dict().keys()
    assert {name.rpartition("/")[2] for name in snapshot.tensors[OPTIMIZER]} == {"step", "exp_avg", "exp_avg_sq"}
    assert snapshot.random_state == torch.get_rng_state().numpy().tobytes()
