import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.logprob_gap import Comparable, LogprobGap
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.trajectory import TrainingTrajectory

OLD, NOW = 3, 4


def a_trajectory(*spans: Span) -> TrainingTrajectory:
    ids = np.ones(6, np.int32)
    return TrainingTrajectory(0, ids[:2], ids, np.full(6, -1.0, np.float32), 1.0, spans)


SWAPPED_ONCE = a_trajectory(Span(OLD, 0, 2), Span(NOW, 2, 5), Span(5, 5, 6))
ONE_VERSION = a_trajectory(Span(NOW, 0, 6))


def test_tokens_of_the_weights_in_training_are_compared(config):
    tokens = Comparable(config()).tokens([SWAPPED_ONCE, ONE_VERSION], NOW)

    assert tokens is not None
    assert tokens.tolist() == [False, False, True, True, True, False] + [True] * 6


def test_with_old_keys_kept_only_the_first_span_is_compared(config):
    comparable = Comparable(config(rollout={"kv": "keep"}))

    assert comparable.tokens([SWAPPED_ONCE], NOW) is None
    for given, version, expected in ((SWAPPED_ONCE, OLD, [True, True] + [False] * 4), (ONE_VERSION, NOW, [True] * 6)):
        tokens = comparable.tokens([given], version)
        assert tokens is not None
        assert tokens.tolist() == expected


@pytest.mark.parametrize("version", [7, None])
def test_weights_that_wrote_no_token_are_compared_with_none(config, version):
    assert Comparable(config()).tokens([SWAPPED_ONCE, a_trajectory()], version) is None


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
def test_tokens_of_a_cut_distribution_are_not_compared_and_that_is_logged_once(config, cut):
    with capture_logs() as logs:
        comparable = Comparable(config(sampling=cut, schedule={"staleness": 0}))
        assert comparable.tokens([ONE_VERSION], NOW) is None
        assert comparable.tokens([ONE_VERSION], NOW) is None

    assert [line["event"] for line in logs] == ["logprob_gap.unmeasured"]


def test_with_the_masks_of_the_sampler_tokens_of_a_cut_distribution_are_compared(config):
    with capture_logs() as logs:
        tokens = Comparable(config(sampling={"top_p": 0.9, "replay_mask": True})).tokens([ONE_VERSION], NOW)

    assert tokens is not None
    assert tokens.all()
    assert not logs


def test_the_total_is_of_the_compared_tokens_of_all_micro_batches() -> None:
    gap = LogprobGap()
    assert gap.total() is None, "no token compared is not a gap of zero"
    gap.add(torch.tensor([0.25, 9.0, 0.5]), torch.tensor([True, False, True]))
    gap.add(torch.tensor([0.75, float("nan")]), torch.tensor([True, False]))

    assert gap.total() == (1.5, 0.75, 3.0)


def test_steps_without_such_tokens_have_no_gap_metrics(model_path, config, make_trajectories):
    metrics = Learner(config(), model_path).train(make_trajectories(), 0)

    assert "log_ratio_abs_mean" in metrics
    assert not any(name.startswith("logprob_gap") for name in metrics)
