import pytest
import torch
from torch import nn

from asyncrl.config.sections.trainer import Trainer
from asyncrl.trainer.model.optimizer import Optimizer

TRAINER = Trainer(beta1=0.9, beta2=0.99)


def optimizer(weight: nn.Parameter, **options: float) -> Optimizer:
    return Optimizer({"w": weight}, TRAINER, **{"weight_decay": 0.0, "grad_clip": 0.0} | options)


def push(weight: nn.Parameter, *gradient: float) -> None:
    assert weight.grad is not None
    weight.grad += torch.tensor(gradient)


def test_a_first_step_goes_one_learning_rate_against_the_gradient() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    steps = optimizer(weight)
    push(weight, 3.0, -4.0)
    assert steps.step(0.0, lr=0.1) == {"grad_norm": 5.0, "skipped": 0.0}
    assert weight.tolist() == pytest.approx([0.9, 2.1])
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize(("loss", "gradient"), [(float("nan"), 1.0), (0.0, float("inf"))], ids=["loss", "gradient"])
def test_a_non_finite_update_is_skipped_and_reported(loss, gradient):
    weight = nn.Parameter(torch.ones(1))
    steps = optimizer(weight)
    push(weight, gradient)
    assert steps.step(loss, lr=0.1)["skipped"] == 1.0
    assert weight.item() == 1.0
    assert weight.grad is not None
    assert not weight.grad.any()


def test_a_restored_optimizer_continues_bit_for_bit() -> None:
    weights = [nn.Parameter(torch.tensor([1.0, 2.0])) for _ in range(2)]
    first, second = (optimizer(weight, weight_decay=0.1, grad_clip=1.0) for weight in weights)
    push(weights[0], 3.0, -4.0)
    first.step(0.0, lr=0.1)
    second.restore(first.state())
    with torch.no_grad():
        weights[1].copy_(weights[0])
    for weight, steps in zip(weights, (first, second), strict=True):
        push(weight, 1.0, 0.5)
        steps.step(0.0, lr=0.1)
    assert torch.equal(*weights)
