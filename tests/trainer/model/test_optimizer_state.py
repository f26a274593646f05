import pytest
import torch
from torch import nn

from asyncrl.errors import LedgerError
from asyncrl.trainer.model.optimizer_state import read_state, state_tensors


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
