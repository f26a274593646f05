import numpy as np
import pytest
import torch

from asyncrl.algo.clipped import clipped_loss
from asyncrl.trainer.batch import TrainingSample, collate
from asyncrl.trainer.tally import Tally


def test_means_are_over_the_tokens_of_all_micro_batches() -> None:
    tally = Tally()
    for shifts in ([0.5, -0.5, 0.0], [0.2]):
        ids = np.ones(len(shifts), np.int32)
        sample = TrainingSample(0, ids[:1], ids, np.full(len(shifts), -1.0, np.float32), 1.0)
        is_compared = np.array([False, True, True]) if len(shifts) == 3 else None
        batch = collate([sample], [1.0], [1.0], is_compared, device=torch.device("cpu"))
        logprobs = torch.tensor(shifts) - 1.0
        clipped = clipped_loss(
            logprobs, batch.behavior_logprobs, batch.advantages, clip_low=0.2, clip_high=0.28, dual_clip=3.0
        )
        tally.add(batch, logprobs, clipped, clipped.losses.sum(), torch.ones_like(logprobs))
    metrics = tally.metrics()

    # ratios 1.649 (clipped to 1.28), .607, 1, 1.221
    assert metrics["loss"] == pytest.approx(-(1.28 + 0.606531 + 1 + 1.221403), abs=1e-5)
    assert metrics["clip_fraction"] == 0.25
    assert metrics["kl"] == pytest.approx(-0.2 / 4, abs=1e-6)
    assert metrics["log_ratio_abs_mean"] == pytest.approx(1.2 / 4, abs=1e-6)
    assert metrics["log_ratio_abs_max"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["logprob_gap_mean"] == pytest.approx(0.5 / 2, abs=1e-6)
    assert metrics["logprob_gap_tokens"] == 2
    assert metrics["kl_ref"] == 1.0
    assert (metrics["trained_tokens"], metrics["micro_batches"], metrics["padded_tokens"]) == (4, 2, 6)


def test_a_step_that_trained_on_nothing_has_finite_metrics() -> None:
    assert Tally().metrics() == {
        "loss": 0.0,
        "log_ratio_abs_max": 0.0,
        "trained_tokens": 0.0,
        "micro_batches": 0.0,
        "padded_tokens": 0.0,
    }
