"""Pairs made from values, other ones each day: a verdict is right for every written form, and nothing games it."""

from datetime import UTC, datetime

import pytest

from asyncrl.reward.answers.same_value import canonical, compare
from tests.reward.answers.hostile_answers import fuzz, gaming
from tests.reward.answers.made_pairs import made

SEED = datetime.now(UTC).toordinal()


@pytest.mark.parametrize("count", [5000, pytest.param(40_000, marks=pytest.mark.long("forty thousand pairs"))])
def test_two_answers_are_the_same_exactly_if_their_values_are(count: int) -> None:
    wrong = [pair for pair in made(SEED, count) if compare(pair.given, pair.answer).is_same != pair.is_same]
    assert wrong == [], f"seed {SEED}"


def test_a_verdict_is_the_same_both_ways_and_every_answer_is_its_own_reference() -> None:
    for pair in made(SEED, 1000):
        assert compare(pair.answer, pair.given) == compare(pair.given, pair.answer), f"{pair}, seed {SEED}"
        assert compare(f" {pair.given}", pair.given).is_same, f"{pair}, seed {SEED}"


def test_hostile_answers_are_never_the_reference() -> None:
    assert [pair for pair in gaming(SEED, 1000) if compare(*pair).is_same] == [], f"seed {SEED}"


def test_any_text_is_judged_and_has_a_vote() -> None:
    for text in fuzz(SEED, 1000):
        compare(text, "5")
        canonical(text)
