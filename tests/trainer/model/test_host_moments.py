import pytest
import torch
from torch import nn

from asyncrl.config.sections.trainer import Trainer
from asyncrl.trainer.model import host_moments
from asyncrl.trainer.model.host_moments import moment_buckets
from asyncrl.trainer.model.optimizer import Optimizer


def parameters(*sizes: int) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=random)) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [([3, 3, 4, 1], [[3, 3, 4], [1]]), ([20, 1], [[20], [1]]), ([5, 20, 5, 5], [[5], [20], [5, 5]]), ([], [[]])],
    ids=str,
)
def test_a_bucket_is_full_before_the_next_begins(monkeypatch: pytest.MonkeyPatch, sizes, cuts) -> None:
    monkeypatch.setattr(host_moments, "BUCKET", 10 * host_moments.ITEM)
    assert [[len(weight) for weight in bucket] for bucket in moment_buckets(parameters(*sizes))] == cuts


def test_moments_on_the_host_step_and_resume_as_those_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_moments, "BUCKET", 10 * host_moments.ITEM)
    states, weights = [], []
    for offload in ([], ["moments"]):
        trainer = Trainer(offload=offload)  # type: ignore[arg-type]
        named = {str(i): weight for i, weight in enumerate(parameters(5, 20, 5, 5))}
        steps = Optimizer(named, trainer, weight_decay=0.1, grad_clip=1.0)
        for step in range(4):
            if step == 2:
                saved = {name: moment.clone() for name, moment in steps.state().items()}
                steps = Optimizer(named, trainer, weight_decay=0.1, grad_clip=1.0)
                steps.restore(saved)
            for weight in named.values():
                weight.grad = weight.detach().cos() * (step + 1)
            steps.step(0.0, lr=0.1 / (step + 1))
        states.append(steps.state())
        weights.append(named)

    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(moment, states[1][name]) for name, moment in states[0].items())
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
