"""Routing of rows to verifiers."""

from fnmatch import fnmatchcase

import pytest

from asyncrl.config.sections.reward import Reward, RewardPart
from asyncrl.errors import ConfigError
from asyncrl.reward.catalogue import BUILT_IN
from asyncrl.reward.routing import ROUTES, auto_routed, check_routes, route, unrouted

SOURCES = ["openai/gsm8k", "aime2024", "mine", "mine"]


@pytest.mark.parametrize(
    ("source", "function"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("numina_olympiads", "math"),
        ("math", "math_dapo"),
        ("math_dapo", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("hiyouga/geometry3k", "geo3k"),
        ("taco", "code"),
        ("openai/gsm8k2", None),
        ("MATH", None),
        ("", None),
    ],
)
def test_rows_prepared_for_verl_are_judged_alike(source: str, function: str | None) -> None:
    assert route(source) == function


def test_no_source_fits_two_patterns_and_every_route_is_a_verifier() -> None:
    for pattern in ROUTES:
        source = pattern.replace("*", "x")
        assert [other for other in ROUTES if fnmatchcase(source, other)] == [pattern]
    assert set(ROUTES.values()) <= set(BUILT_IN)


@pytest.mark.parametrize(
    ("reward", "left"),
    [
        (Reward(function="gsm8k"), []),
        (Reward(function="auto"), ["mine"]),
        (Reward(parts=[RewardPart(name="a", function="gsm8k", data_sources=["openai/*"])]), ["aime2024", "mine"]),
        (Reward(parts=[RewardPart(name="a", function="gsm8k")]), []),
        (
            Reward(
                parts=[
                    RewardPart(name="a", function="auto"),
                    RewardPart(name="b", function="exact", data_sources=["mine"]),
                ]
            ),
            ["mine"],
        ),
    ],
)
def test_rows_that_nothing_could_judge_are_named_once(reward: Reward, left: list[str]) -> None:
    assert unrouted(reward, SOURCES) == left


@pytest.mark.parametrize(
    ("reward", "used"),
    [
        (Reward(), ["gsm8k", "math_dapo"]),
        (Reward(function="exact"), []),
        (Reward(parts=[RewardPart(name="a", function="auto", data_sources=["aime*"])]), ["math_dapo"]),
    ],
)
def test_auto_uses_the_verifiers_of_the_data_sources_that_reach_it(reward: Reward, used: list[str]) -> None:
    assert auto_routed(reward, SOURCES) == used


def test_a_dataset_with_such_rows_is_refused_with_advice() -> None:
    part = RewardPart(name="a", function="gsm8k", data_sources=["openai/*"])

    check_routes(Reward(function="gsm8k"), SOURCES)
    with pytest.raises(
        ConfigError, match=r"'opena/gsm8k': .*did you mean 'openai/gsm8k'\? it knows openai/gsm8k, .*taco, .*; set"
    ):
        check_routes(Reward(function="auto"), ["opena/gsm8k"])
    with pytest.raises(
        ConfigError, match=r"no reward is for rows without a data_source: reward.function = 'auto': it k"
    ):
        check_routes(Reward(), [""])
    with pytest.raises(ConfigError, match=r"data_source 'aime2024', 'mine': add it to data_sources of one of"):
        check_routes(Reward(parts=[part]), SOURCES)
    with pytest.raises(ConfigError, match="'4' and 5 more"):
        check_routes(Reward(parts=[part]), map(str, range(10)))
