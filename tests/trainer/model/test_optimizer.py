import pytest
import torch
from torch import nn

from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import LedgerError
from asyncrl.trainer.model.optimizer import Optimizer, learning_rate, read_state, state_tensors


def rates(trainer: Trainer, num_steps: int) -> list[float]:
    return [learning_rate(step, trainer, num_steps, trainer.lr) for step in range(num_steps)]


def test_warm_up_is_linear_and_never_zero() -> None:
    assert rates(Trainer(lr=4.0, warmup_steps=4), 6) == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]


def test_cosine_falls_from_the_end_of_the_warm_up() -> None:
    trainer = Trainer(lr=1.0, warmup_steps=1, lr_schedule="cosine")
    # progress 0, 1/4, 1/2, 3/4 of half a cosine
    assert rates(trainer, 5) == pytest.approx([1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_cosine_ends_at_its_floor_and_stays_there() -> None:
    trainer = Trainer(lr=2.0, lr_schedule="cosine", min_lr_ratio=0.1)
    assert learning_rate(5, trainer, 10, 2.0) == pytest.approx(2.0 * 0.55)
    assert (
        learning_rate(10, trainer, 10, trainer.lr) == learning_rate(99, trainer, 10, trainer.lr) == pytest.approx(0.2)
    )


# ── test optimizer ────────────────────────────────────────────────────────────────────────────

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


# ── test optimizer state ──────────────────────────────────────────────────────────────────────


def adamw() -> tuple[torch.optim.AdamW, dict[str, nn.Parameter]]:
    parameters = {"a": nn.Parameter(torch.ones(2, 3)), "b": nn.Parameter(torch.ones(4))}
    return torch.optim.AdamW(parameters.values(), lr=0.1, fused=True), parameters


def step(optimizer: torch.optim.AdamW, parameters: dict[str, nn.Parameter]) -> None:
    for weight in parameters.values():
        weight.grad = torch.arange(weight.numel(), dtype=torch.float32).reshape(weight.shape) - 1.5
    optimizer.step()


def test_a_restored_optimizer_takes_the_same_next_step() -> None:
    (old, weights), (new, copies) = adamw(), adamw()
    step(old, weights)
    new.state.update(read_state(copies, state_tensors(old.state, weights)))
    for name, weight in copies.items():
        weight.data.copy_(weights[name].data)
    step(old, weights)
    step(new, copies)

    assert all(torch.equal(weights[name], copies[name]) for name in weights)
    assert all(
        torch.equal(tensor, state_tensors(new.state, copies)[name])
        for name, tensor in state_tensors(old.state, weights).items()
    )


def test_an_optimizer_that_never_stepped_has_no_state() -> None:
    optimizer, parameters = adamw()
    assert state_tensors(optimizer.state, parameters) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda state: state.update({"c/step": torch.tensor(1.0)}), "'c/step'", id="another model"),
        pytest.param(lambda state: state.pop("b/exp_avg"), "'b' lacks exp_avg", id="a moment is gone"),
        pytest.param(
            lambda state: state.update({"b/exp_avg": torch.zeros(5)}), r"expected shape \(4,\), got \(5,\)", id="shape"
        ),
    ],
)
def test_state_of_another_model_is_refused(change, message):
    (old, weights), (_, copies) = adamw(), adamw()
    step(old, weights)
    state = dict(state_tensors(old.state, weights))
    change(state)
    with pytest.raises(LedgerError, match=message):
        read_state(copies, state)
