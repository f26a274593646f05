import pytest
import torch

from asyncrl.algo.correction.correct import Correct
from asyncrl.algo.ragged import Ragged
from asyncrl.config.sections.algorithm import Correction
from asyncrl.errors import ConfigError

SEQUENCES = Ragged([2, 1])
BEHAVIOR = torch.full((3,), -2.0)
LOGPROBS = torch.tensor([-1.0, -3.0, -2.5], requires_grad=True)


@pytest.mark.parametrize("mode", ["bypass", "decoupled"])
def test_a_correction_with_nothing_set_does_nothing(mode: str) -> None:
    assert Correct(Correction(mode=mode))(LOGPROBS, BEHAVIOR, SEQUENCES) == (None, None)  # type: ignore[arg-type]


def test_a_preset_does_what_it_stands_for() -> None:
    weights, keep = Correct(Correction(preset="sequence_tis_geometric_rs"))(LOGPROBS, BEHAVIOR, SEQUENCES)
    assert weights is not None
    assert keep is not None
    assert weights.tolist() == pytest.approx([1.0, 1.0, 0.60653066])
    assert keep.tolist() == [True, True, False]


def test_there_is_no_gradient_in_it() -> None:
    correction = Correction(preset="decoupled_token_is")
    weights, _ = Correct(correction)(LOGPROBS, BEHAVIOR, SEQUENCES)
    assert weights is not None
    assert not weights.requires_grad
    Correct(correction).metrics(LOGPROBS, BEHAVIOR, SEQUENCES)


def test_every_rejection_has_to_be_passed() -> None:
    both = Correction(rejection="token_k1,seq_mean_k1", rejection_threshold="0.5_4,0.9_1.1")
    _, keep = Correct(both)(LOGPROBS, BEHAVIOR, SEQUENCES)
    assert keep is not None
    assert keep.tolist() == [False, True, False]


def test_a_step_and_its_parts_are_corrected_alike() -> None:
    correct = Correct(Correction(preset="decoupled_k3_rs_token_tis"))
    random = torch.Generator().manual_seed(0)
    behavior, logprobs = (-torch.rand(60, generator=random) for _ in range(2))
    lengths = [7, 0, 20, 1, 32]
    weights, keep = correct(logprobs, behavior, Ragged(lengths))
    assert weights is not None
    assert keep is not None
    parts = [
        correct(ours, theirs, Ragged([length]))
        for ours, theirs, length in zip(logprobs.split(lengths), behavior.split(lengths), lengths, strict=True)
    ]
    assert torch.equal(torch.cat([part.weights for part in parts]), weights)  # type: ignore[misc]
    assert torch.equal(torch.cat([part.keep for part in parts]), keep)  # type: ignore[misc]


def test_float32_is_near_enough_to_float64() -> None:
    correct = Correct(Correction(preset="decoupled_seq_is"))
    random = torch.Generator().manual_seed(0)
    behavior = -torch.rand(8192, generator=random)
    logprobs = behavior + 0.01 * torch.randn(8192, generator=random)
    single, _ = correct(logprobs, behavior, Ragged([8192]))
    double, _ = correct(logprobs.double(), behavior.double(), Ragged([8192]))
    assert single is not None
    assert double is not None
    assert float((single / double - 1).abs().max()) < 1e-5


def test_metrics_are_those_of_what_is_set() -> None:
    prefixes = ("rollout_is_", "rollout_rs_")
    for correction, expected in (
        (Correction(), {False}),
        (Correction(preset="decoupled_token_is"), {"rollout_is_"}),
        (Correction(preset="decoupled_geo_rs"), {"rollout_rs_"}),
        (Correction(preset="decoupled_geo_rs_seq_tis"), set(prefixes)),
    ):
        found = Correct(correction).metrics(LOGPROBS.detach(), BEHAVIOR, SEQUENCES)
        assert {"kl", "k3_kl", "training_ppl", "rollout_ppl", "chi2_token", "chi2_seq"} < found.keys()
        assert {prefix for name in found for prefix in prefixes if name.startswith(prefix)} == expected - {False}


def test_a_step_without_tokens_has_no_metrics() -> None:
    correct = Correct(Correction(preset="decoupled_geo_rs_seq_tis"))
    assert correct.metrics(torch.empty(0), torch.empty(0), Ragged([0, 0])) == {}
    weights, keep = correct(torch.empty(0), torch.empty(0), Ragged([0, 0]))
    assert weights is not None
    assert keep is not None
    assert (len(weights), len(keep)) == (0, 0)


def test_what_cannot_be_understood_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no preset 'geo_rs'"):
        Correct(Correction(preset="geo_rs"))
