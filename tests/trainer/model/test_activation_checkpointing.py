"""What layers keep and compute again changes no gradient."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from asyncrl.errors import ConfigError
from asyncrl.trainer.model.activation_checkpointing import enable_checkpointing
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate

CPU = torch.device("cpu")


class Calls(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.of[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def backward(path, batch, how):
    """Gradients, and the operations of the backward pass."""
    policy = Policy(path, gradient_checkpointing=how)
    loss = policy.score(batch, temperature=1.0).logprobs.sum()
    with Calls() as calls:
        loss.backward()
    return [weight.grad for weight in policy.parameters().values()], calls.of


@pytest.mark.parametrize("model", ["model_path", "experts_path"])
def test_selective_recomputes_neither_attention_nor_products(request, make_trajectories, model):
    path, batch = request.getfixturevalue(model), collate(make_trajectories(), device=CPU)
    (kept, plain), (whole, again), (selective, some) = (
        backward(path, batch, how) for how in (False, True, "selective")
    )

    for gradients in (whole, selective):
        for gradient, expected in zip(gradients, kept, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
    attention = next(name for name in again if name.endswith("attention_for_cpu"))
    assert again[attention] > 0 == plain[attention] == some[attention]
    assert again["mm"] > some["mm"] == plain["mm"]
    assert again["rsqrt"] == some["rsqrt"] > plain["rsqrt"]


def test_dropout_is_refused(save_model):
    model = nn.Module()
    model.config = Policy(save_model(attention_dropout=0.5)).model.config
    with pytest.raises(ConfigError, match=r"^here: attention_dropout=0\.5"):
        enable_checkpointing(model, "here")
