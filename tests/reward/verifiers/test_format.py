"""Format of a completion."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput
from asyncrl.reward.verifiers.format import Format

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
def test_scores_worked_by_hand(once: bool, completion: str, score: float) -> None:
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
