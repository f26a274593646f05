"""The warm-up: its rates, its rounds, and what it says. That it teaches is shown by the quickstart, not here."""

from typing import Any

import pytest
import torch

from asyncrl.config.sections import Scratch
from asyncrl.errors import RunFailed
from asyncrl.toy import scratch, vocabulary
from asyncrl.toy.step_sums import WORDS
from asyncrl.toy.warm_up import CLEAN, MIXTURE, Lesson, WarmUp

SHORT: dict[str, Any] = {
    "batch_size": 4,
    "rise_steps": 2,
    "constant_steps": 4,
    "decay_steps": 4,
    "mixture_steps": 4,
    "num_judged": 4,
    "report_every": 4,
}


def lesson(said: list[str] | None = None, **schedule: Any) -> Lesson:
    tokenizer = vocabulary.of_words(WORDS)
    model = scratch.fresh_model(Scratch(layers=1, hidden_size=16, intermediate_size=16, head_dim=8), tokenizer)
    lines = [] if said is None else said
    return Lesson(model, tokenizer, WarmUp(**SHORT | schedule), seed=0, report=lines.append)


def test_the_rate_rises_stays_and_falls() -> None:
    """Of 0.1: half, whole, whole, whole; then from whole towards a fifth in four equal parts."""
    rates = lesson(lr=0.1, final_lr_ratio=0.2).clean_rates()
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1, 0.08, 0.06, 0.04])


def test_the_clean_phase_ends_as_soon_as_the_goal_is_met() -> None:
    said: list[str] = []
    lesson(said, goal=0.0).teach_chains()
    assert [line.split(", loss")[0] for line in said] == ["chains: step 4 of 8", "chains: step 8 of 8"]


def test_a_goal_that_is_missed_is_tried_again_and_then_said() -> None:
    said: list[str] = []
    with pytest.raises(RunFailed, match=r"0% of held-out chains are right after 2 rounds, expected 95%"):
        lesson(said, max_rounds=2).teach_chains()
    assert len(said) == 4


def test_the_mixture_reports_what_the_base_can_do() -> None:
    said: list[str] = []
    lesson(said).teach_guessing()
    assert said[-1] == "base: greedy accuracy 0.000"


def test_guessing_is_the_likeliest_habit() -> None:
    assert sum(CLEAN.values()) == pytest.approx(1.0)
    assert sum(MIXTURE.values()) == pytest.approx(1.0)
    assert max(MIXTURE, key=MIXTURE.__getitem__).__name__ == "wrong_guess"


def test_steps_lower_the_loss() -> None:
    said: list[str] = []
    lesson(said, goal=0.0, constant_steps=30, decay_steps=10, report_every=10, lr=1e-2).teach_chains()
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said]
    assert losses[-1] < losses[0]


def test_the_same_seed_gives_the_same_model() -> None:
    first, second = lesson(), lesson()
    for one in (first, second):
        one.teach_guessing()
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
