"""examples/own_reward.py"""

import pytest

from asyncrl import VerifierInput
from asyncrl.reward.verifier import verdict_of
from tests.examples.conftest import ROOT, load_example


@pytest.mark.parametrize(
    ("completion", "reward", "correct"),
    [
        pytest.param("3 + 4 = 7\n#### 7", 1.1, 1.0, id="right, with a step"),
        pytest.param("#### 7", 1.0, 1.0, id="right, guessed"),
        pytest.param("3 + 4 = 8\n#### 8", 0.1, 0.0, id="wrong, with a step"),
        pytest.param("seven", 0.0, 0.0, id="no answer"),
    ],
)
def test_the_answer_counts_and_steps_earn_a_bonus(completion: str, reward: float, correct: float) -> None:
    example = load_example("own_reward")
    verdict = verdict_of(example.score(VerifierInput(completion=completion, answer="3 + 4 #### 7"), bonus=0.1))
    assert [verdict.reward, verdict.metrics["correct"]] == pytest.approx([reward, correct])


def test_the_command_in_its_docstring_names_it() -> None:
    assert "examples/own_reward.py:score" in (ROOT / "examples" / "own_reward.py").read_text(encoding="utf-8")
