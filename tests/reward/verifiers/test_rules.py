"""Verifiers chosen by data source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages.trajectory import FROM_PROMPT, Prompt, Turn
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of, verifier_input
from asyncrl.reward.verifiers.rules import EpisodeReward, Exact, Format, Length, Numeric, Overlong


def test_a_row_is_judged_by_the_rules_of_its_data_source() -> None:
    auto = resolve("auto")

    assert verdict_of(auto(VerifierInput(completion="#### 4", answer="4", data_source="openai/gsm8k"))).reward == 1.0
    assert verdict_of(auto(VerifierInput(completion="#### 4", answer="4", data_source="aime2024"))).reward == -1.0


def test_a_row_of_an_unknown_source_is_a_failure_and_not_a_zero() -> None:
    with pytest.raises(
        VerifierError, match="no verifier for data_source 'opena/gsm8k': did you mean 'openai/gsm8k'"
    ) as e:
        resolve("auto")(VerifierInput(completion="#### 4", answer="4", data_source="opena/gsm8k"))

    assert not e.value.retryable


# ── test episode ──────────────────────────────────────────────────────────────────────────────
# The environment's own word on an episode.


def an_episode(*rewards: float, **scores: float) -> VerifierInput:
    turns = [Turn(place - 1, 1, 1, reward=reward, text=f"turn {place}") for place, reward in enumerate(rewards)]
    return verifier_input(Prompt(text="?"), "turn", finish_reason="stop", num_tokens=3, turns=turns, scores=scores)


def verdict(inputs: VerifierInput) -> Verdict:
    return verdict_of(EpisodeReward()(inputs))


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
    assert isinstance(resolve("episode"), EpisodeReward)
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


# ── test exact ────────────────────────────────────────────────────────────────────────────────
# Exact match.


def score(verifier: Exact, completion: str, answer: str) -> float:
    return verdict_of(verifier(VerifierInput(completion=completion, answer=answer))).reward


@pytest.mark.parametrize(
    ("verifier", "completion", "answer", "expected"),
    [
        (Exact(), " Paris\n", "Paris", 1.0),
        (Exact(), "paris", "Paris", 0.0),
        (Exact(ignore_case=True), "PARIS", "Paris", 1.0),
        (Exact(), "It is Paris", "Paris", 0.0),
        (Exact(after="Answer:"), "Answer: Rome\nAnswer: Paris", "Paris", 1.0),
        (Exact(after="Answer:"), "Answer: Paris\nAnswer: Rome", "Paris", 0.0),
        (Exact(after="Answer:"), "Paris", "Paris", 0.0),
        (Exact(), "", "Paris", 0.0),
    ],
)
def test_scores_worked_by_hand(verifier: Exact, completion: str, answer: str, expected: float) -> None:
    assert score(verifier, completion, answer) == expected


@pytest.mark.parametrize(("verifier", "answer"), [(Exact(), ""), (Exact(after="####"), " \n")])
def test_a_row_without_an_answer_is_an_error_and_not_a_one(verifier: Exact, answer: str) -> None:
    with pytest.raises(VerifierError, match="no answer"):
        score(verifier, "####", answer)


@given(st.text(), st.text().filter(str.strip))
def test_the_score_is_equality_up_to_outer_white_space(completion: str, answer: str) -> None:
    assert score(Exact(), completion, answer) == float(completion.strip() == answer.strip())


def test_a_hostile_megabyte_is_not_rewarded() -> None:
    assert score(Exact(after="####"), "#" * 1_000_000, "4") == 0.0


# ── test format ───────────────────────────────────────────────────────────────────────────────
# Format of a completion.

TAGS = "<think>...</think>...<answer>...</answer>"


@pytest.mark.parametrize(
    ("once", "completion", "score"),
    [
        (True, "<think>a</think><answer>b</answer>", 1.0),
        (True, "\n<think>a</think>\n\n<answer>b</answer>\n", 1.0),
        (True, "<think>a</think><answer>b</answer> bye", 0.0),
        (True, "<think>a</think></think><answer>b</answer>", 0.0),
        (False, "<think>a</think></think><answer>b</answer>", 1.0),
        (True, "<answer>b</answer><think>a</think>", 0.0),
        (True, "", 0.0),
    ],
)
def test_scores_worked_by_hand_of_format(once: bool, completion: str, score: float) -> None:
    assert Format(template=TAGS, once=once)(VerifierInput(completion=completion)) == score


@pytest.mark.parametrize("template", ["", "...", "... ..."])
def test_a_template_that_everything_fits_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="every text fits"):
        resolve("format", {"template": template})


def test_a_thought_that_the_prompt_has_opened_counts() -> None:
    verifier = Format(template="<think>...</think>...")
    closed = "hm\n</think> so 5"
    assert verifier(VerifierInput(completion=closed, opened="<think>\n")) == 1.0
    assert verifier(VerifierInput(completion=closed)) == 0.0
    assert verifier(VerifierInput(completion="<think>hm</think> so 5", opened="<think>\n")) == 0.0, "it is opened twice"


# ── test length ───────────────────────────────────────────────────────────────────────────────
# Linear length penalty.


@pytest.mark.parametrize(
    ("tokens", "penalty", "correct"),
    [(0, 0.0, 1.0), (20, 0.0, 1.0), (21, -0.025, 0.0), (60, -1.0, 0.0), (100, -2.0, 0.0), (150, -2.0, 0.0)],
)
def test_the_penalty_grows_linearly_from_the_free_tokens_to_the_limit(
    tokens: int, penalty: float, correct: float
) -> None:
    verifier = Length(max_tokens=100, free=20, factor=2.0)

    verdict = verdict_of(verifier(VerifierInput(completion="", num_tokens=tokens)))

    assert verdict.reward == pytest.approx(penalty)
    assert verdict.metrics["correct"] == correct


def test_without_free_tokens_every_token_costs_the_same() -> None:
    verifier = resolve("length", {"max_tokens": 50})
    verdicts = [verdict_of(verifier(VerifierInput(completion="", num_tokens=tokens))) for tokens in (0, 25, 50)]
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.0, -0.05, -0.1])


def test_free_tokens_up_to_the_limit_are_refused() -> None:
    with pytest.raises(ConfigError, match="free is 10, expected less than max_tokens = 10"):
        resolve("length", {"max_tokens": 10, "free": 10})


# ── test numeric ──────────────────────────────────────────────────────────────────────────────
# Numeric match.


def numeric_score(verifier: Numeric, completion: str, answer: str) -> float:
    return verdict_of(verifier(VerifierInput(completion=completion, answer=answer))).reward


@pytest.mark.parametrize(
    ("tolerance", "completion", "answer", "expected"),
    [
        (1e-6, "it is 18.0.", "18", 1.0),
        (1e-6, "1,234.50", "1234.5", 1.0),
        (1e-6, "1.5e3", "1500", 1.0),
        (1e-6, "first 18, then 3", "18", 0.0),
        (1e-6, "-3", "3", 0.0),
        (1e-6, "−3", "-3", 1.0),
        (1e-6, "−3", "3", 0.0),
        (1e-6, "1e−3", "0.001", 1.0),
        (0.0, "it is .75", "0.75", 1.0),
        (0.0, "it is .75", "75", 0.0),
        (0.0, "-.75", "-0.75", 1.0),
        (0.0, "$.75", "0.75", 1.0),
        (0.0, "so...75", "75", 1.0),
        (0.0, "section 1.2.75", "75", 1.0),
        (0.01, "3.14", "3.14159", 1.0),
        (0.0001, "3.14", "3.14159", 0.0),
        (0.01, "0.005", "0", 0.0),
        (1e-6, "0.0", "0", 1.0),
        (1e-6, "1.6e-19", "0", 0.0),
        (1e-6, "0.0000005", "0.0000001", 0.0),
        (1e-6, "答案是１２。", "12", 1.0),
        (1e-6, "–3", "-3", 1.0),
        (0.0, "0.1", "0.1", 1.0),
        (1e-6, "many", "18", 0.0),
        (1e-6, "1e999", "18", 0.0),
    ],
)
def test_scores_worked_by_hand_of_numeric(tolerance: float, completion: str, answer: str, expected: float) -> None:
    assert numeric_score(Numeric(tolerance=tolerance), completion, answer) == expected


@pytest.mark.parametrize("answer", ["", "eighteen", "1e999"])
def test_an_answer_that_is_no_number_is_an_error_and_not_a_zero(answer: str) -> None:
    with pytest.raises(VerifierError, match="no finite number"):
        numeric_score(Numeric(), "18", answer)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_equal_to_itself_however_long(number: float) -> None:
    assert numeric_score(Numeric(tolerance=0.0), f"so: {number!r}", repr(number)) == 1.0


@pytest.mark.parametrize("unit", ["1", "1,", "1.", "1e", "-", "1e+", ",", "1e1", ".1", "."])
def test_a_hostile_megabyte_is_judged_and_not_rewarded(unit: str) -> None:
    assert numeric_score(Numeric(), unit * (1_000_000 // len(unit)), "18") == 0.0


# ── test overlong ─────────────────────────────────────────────────────────────────────────────
# Length penalty.


@pytest.mark.parametrize(
    ("tokens", "penalty", "overlong"),
    [(0, 0.0, 0.0), (80, 0.0, 0.0), (81, -0.1, 1.0), (90, -1.0, 1.0), (100, -2.0, 1.0), (250, -2.0, 1.0)],
)
def test_the_penalty_grows_linearly_over_the_buffer(tokens: int, penalty: float, overlong: float) -> None:
    verifier = Overlong(max_tokens=100, buffer=20, factor=2.0)

    verdict = verdict_of(verifier(VerifierInput(completion="", num_tokens=tokens)))

    assert verdict.reward == pytest.approx(penalty)
    assert verdict.metrics["overlong"] == overlong


def test_a_buffer_longer_than_the_completion_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than max_tokens = 10"):
        resolve("overlong", {"max_tokens": 10, "buffer": 11})
    with pytest.raises(ConfigError, match="missing required field `max_tokens`"):
        resolve("overlong", {"buffer": 11})
