"""The warm-up: learning rates, rounds and reports. The quickstart shows that it teaches the task."""

from typing import Any

import pytest
import torch

from asyncrl.errors import RunFailed
from asyncrl.tools.toy.lessons import step_sums_lesson
from asyncrl.tools.toy.models import tokenizer_from_words
from asyncrl.tools.toy.step_sums import WORDS
from asyncrl.tools.toy.text_model import TextModelSizes, random_model
from asyncrl.tools.toy.warm_up import WarmUp, WarmUpSchedule

SIZES = TextModelSizes(layers=1, hidden_size=16, intermediate_size=16, heads=4, kv_heads=2, head_dim=8)

SHORT: dict[str, Any] = {
    "batch_size": 4,
    "rise_steps": 2,
    "constant_steps": 4,
    "decay_steps": 4,
    "mixture_steps": 4,
    "num_held_out": 4,
    "report_every": 4,
}


def warm_up(said: list[str] | None = None, **schedule: Any) -> WarmUp:
    tokenizer = tokenizer_from_words(WORDS)
    model = random_model(SIZES, tokenizer, seed=0)
    lines = [] if said is None else said
    return WarmUp(
        model, step_sums_lesson(tokenizer, 0), WarmUpSchedule(**SHORT | schedule), seed=0, report=lines.append
    )


def test_the_rate_rises_stays_and_falls() -> None:
    """Of 0.1: half, whole, whole, whole; then from whole towards a fifth in four equal steps."""
    rates = warm_up(lr=0.1, final_lr_ratio=0.2).clean_learning_rates()
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1, 0.08, 0.06, 0.04])


def test_the_clean_phase_ends_as_soon_as_the_goal_is_met() -> None:
    said: list[str] = []
    warm_up(said, goal=0.0).train_chains()
    assert [line.split(", loss")[0] for line in said] == ["chains: step 4 of 8", "chains: step 8 of 8"]


def test_a_goal_that_is_missed_is_tried_again_and_then_said() -> None:
    said: list[str] = []
    with pytest.raises(RunFailed, match=r"step sums: 0% of held-out chains are right after 2 rounds, expected 95%"):
        warm_up(said, max_rounds=2).train_chains()
    assert len(said) == 4


def test_the_mixture_reports_what_the_base_can_do() -> None:
    said: list[str] = []
    warm_up(said).train_guessing()
    assert said[-1] == "base: greedy accuracy 0.000"


def test_steps_lower_the_loss() -> None:
    said: list[str] = []
    warm_up(said, goal=0.0, constant_steps=30, decay_steps=10, report_every=10, lr=1e-2).train_chains()
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said]
    assert losses[-1] < losses[0]


def test_the_same_seed_gives_the_same_model() -> None:
    first, second = warm_up(), warm_up()
    for one in (first, second):
        one.train_guessing()
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
