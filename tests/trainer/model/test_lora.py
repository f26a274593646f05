import pytest
import torch

from asyncrl.config.sections import Lora
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate

CPU = torch.device("cpu")
LORA = Lora(rank=2, alpha=3.0)


def adapted(path, seed: int = 0, lora: Lora = LORA, **options) -> Policy:
    """A policy whose adapters have learned something."""
    policy = Policy(path, lora=lora, **options)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters().values():
            weight.normal_(std=0.3)
    return policy


def logprobs(policy: Policy, samples) -> torch.Tensor:
    return policy.score(collate(samples, device=CPU), temperature=1.0).logprobs


def test_fresh_adapters_change_nothing(model_path, make_samples) -> None:
    samples = make_samples()
    assert torch.equal(logprobs(Policy(model_path, lora=LORA), samples), logprobs(Policy(model_path), samples))


def test_what_is_published_is_a_plain_model_that_computes_the_same(model_path, make_samples, tmp_path) -> None:
    policy, samples = adapted(model_path), make_samples()
    policy.model.save_pretrained(tmp_path, state_dict=policy.state_dict())
    plain = Policy(tmp_path)

    torch.testing.assert_close(logprobs(plain, samples), logprobs(policy, samples), rtol=1e-5, atol=1e-5)
    assert policy.specs() == plain.specs()
    for (name, weight), (other, published) in zip(plain.named_weights(), policy.named_weights(), strict=True):
        assert name == other
        torch.testing.assert_close(published, weight, rtol=0, atol=0)


def test_a_merged_weight_is_the_formula(model_path) -> None:
    policy, name = adapted(model_path), "model.layers.1.mlp.up_proj"
    down, up = (policy.parameters()[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    expected = policy.model.get_parameter(f"{name}.weight") + 3.0 / 2 * up @ down
    torch.testing.assert_close(dict(policy.named_weights())[f"{name}.weight"], expected)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_only_adapters_have_gradients(model_path, make_samples, gradient_checkpointing) -> None:
    policy = adapted(model_path, gradient_checkpointing=gradient_checkpointing)
    logprobs(policy, make_samples()).sum().backward()

    assert all(weight.grad.any() for weight in policy.parameters().values())
    assert all(weight.grad is None for weight in policy.model.parameters())
    assert len(policy.parameters()) == 2 * 7 * 2  # A and B, of seven matrices, in two layers


def test_only_targets_are_adapted(model_path) -> None:
    policy = Policy(model_path, lora=Lora(rank=1, targets=["q_proj", "v_proj"]))
    layers = {name.split(".")[-3] for name in policy.parameters()}
    assert layers == {"q_proj", "v_proj"}


def test_an_unknown_target_is_refused_with_those_there_are(model_path) -> None:
    with pytest.raises(ConfigError, match=r"'query'.*down_proj, gate_proj.*v_proj"):
        Policy(model_path, lora=Lora(rank=1, targets=["query"]))


def test_adapters_come_back_bit_for_bit(model_path, make_samples) -> None:
    policy, other, samples = adapted(model_path, seed=1), adapted(model_path, seed=2), make_samples()
    other.restore_adapters(dict(policy.parameters()))
    assert torch.equal(logprobs(other, samples), logprobs(policy, samples))


def test_adapters_of_another_rank_are_refused(model_path) -> None:
    policy, narrow = adapted(model_path), adapted(model_path, lora=Lora(rank=1))
    with pytest.raises(LedgerError, match=r"expected \(2, .*got \(1, .*trainer\.lora"):
        policy.restore_adapters(dict(narrow.parameters()))
