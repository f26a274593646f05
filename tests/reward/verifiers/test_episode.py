"""The environment's own word on an episode."""

import pytest

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages.trajectory import FROM_PROMPT, Prompt, Turn
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of, verifier_input
from asyncrl.reward.verifiers.episode import Episode


def an_episode(*rewards: float, **scores: float) -> VerifierInput:
    turns = [Turn(place - 1, 1, 1, reward=reward, text=f"turn {place}") for place, reward in enumerate(rewards)]
    return verifier_input(Prompt(text="?"), "turn", finish_reason="stop", num_tokens=3, turns=turns, scores=scores)


def verdict(inputs: VerifierInput) -> Verdict:
    return verdict_of(Episode()(inputs))


def test_the_reward_is_the_sum_over_the_turns() -> None:
    assert verdict(an_episode(0.5, -0.25, 1.0)) == Verdict(1.25, {"correct": 1.0})


def test_the_metrics_are_those_of_the_environment_which_may_say_what_is_correct() -> None:
    assert verdict(an_episode(0.5, correct=1.0, moves=7.0)) == Verdict(0.5, {"correct": 1.0, "moves": 7.0})


def test_a_score_that_was_folded_into_the_last_turn_is_whole_again() -> None:
    rewards = 0.1, 0.3, 0.5999999999999999
    assert sum(rewards) < 1.0, "by rounding"
    assert verdict(an_episode(*rewards)) == Verdict(1.0, {"correct": 1.0})


def test_turns_whose_sum_is_no_reward_fail() -> None:
    with pytest.raises(VerifierError, match="at most 1e"):
        verdict(an_episode(1e6, 1e6))


def test_a_completion_without_turns_is_no_episode() -> None:
    with pytest.raises(VerifierError, match=r"without turns: it needs an \[environment\]") as failed:
        verdict(VerifierInput(completion="4"))
    assert not failed.value.retryable


def test_it_has_no_options() -> None:
    assert isinstance(resolve("episode"), Episode)
    with pytest.raises(ConfigError, match="'episode' has no option 'weight'"):
        resolve("episode", {"weight": 2})


def test_a_verifier_of_your_own_sees_every_turn() -> None:
    inputs = verifier_input(
        Prompt(text="?"),
        "4",
        finish_reason="length",
        num_tokens=2,
        turns=[Turn(FROM_PROMPT, 0, 1, text="look"), Turn(0, 2, 1, reward=0.5, observation="left 2", text="4")],
        scores={"moves": 2.0},
    )
    assert [(turn.parent, turn.observation, turn.text, turn.reward) for turn in inputs.turns] == [
        (FROM_PROMPT, "", "look", 0.0),
        (0, "left 2", "4", 0.5),
    ]
    assert (inputs.episode_reward, inputs.scores, inputs.completion) == (0.5, {"moves": 2.0}, "4")


def test_a_single_completion_has_no_turns_and_no_reward_of_an_environment() -> None:
    inputs = verifier_input(Prompt(text="?"), "4", finish_reason="stop", num_tokens=1)
    assert (inputs.turns, inputs.episode_reward, inputs.scores) == ([], None, {})
