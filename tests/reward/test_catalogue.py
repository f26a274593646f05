"""Verifiers by name, and the messages when one cannot be loaded."""

import re
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput, verdict_of


@pytest.fixture
def score_file(tmp_path: Path) -> Path:
    path = tmp_path / "score.py"
    path.write_text(
        "LIMIT = 3\n"
        "class Judge: ...\n"
        "def score(sample): return len(sample.completion)\n"
        "def weighted(sample, *, weight=1.0): return weight\n"
        "def two(solution, truth): return 0\n"
        "def compute_score(solution_str, ground_truth): return 0.5\n"
    )
    return path


def test_a_built_in_is_resolved_with_its_options() -> None:
    inputs = VerifierInput(completion="so it is 18", answer="18")

    assert verdict_of(resolve("gsm8k")(inputs)).reward == 0.0
    assert verdict_of(resolve("gsm8k", {"method": "flexible"})(inputs)).reward == 1.0


def test_a_function_is_loaded_from_its_file(score_file: Path) -> None:
    assert resolve(f"{score_file}:score")(VerifierInput(completion="four")) == 4
    assert resolve(f"{score_file}:weighted", {"weight": 2.5})(VerifierInput(completion="")) == 2.5


def test_a_function_with_verls_arguments_is_called_as_verl_calls_it(score_file: Path) -> None:
    assert resolve(f"{score_file}:compute_score")(VerifierInput(completion="four", answer="4")) == 0.5


def test_a_function_is_loaded_from_a_module() -> None:
    assert resolve("asyncrl.reward.verifier:verdict_of") is verdict_of


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("gsm8", {}, "did you mean 'gsm8k'?"),
        ("zebra", {}, "expected one of: auto, gsm8k, math"),
        ("gsm8k", {"metod": "strict"}, "did you mean 'method'?"),
        ("gsm8k", {"method": "loose"}, "Invalid enum value 'loose'"),
        ("numeric", {"tolerance": -1.0}, "Expected `float` >= 0"),
        ("{dir}/scor.py:score", {}, "there is no file"),
        ("{dir}/score.py:scores", {}, "did you mean 'score'?"),
        ("{dir}/score.py:LIMIT", {}, "is 3, expected a function"),
        ("{dir}/score.py:Judge", {}, "expected a function"),
        ("{dir}/score.py:two", {}, "but is called with one argument, the input (missing a required argument"),
        ("{dir}/score.py:two", {}, "or verl's def compute_score(data_source, solution_str, ground_truth, extra_info)"),
        ("{dir}/score.py:score", {"weight": 1.0}, "unexpected keyword argument 'weight'"),
        ("no.such.module:score", {}, "No module named 'no'"),
    ],
)
def test_what_cannot_be_resolved_is_refused_in_one_sentence(
    score_file: Path, function: str, options: dict[str, str | float], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        resolve(function.format(dir=score_file.parent), options)

    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_imported_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "garbled.py").write_text("def score(:\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")

    with pytest.raises(ConfigError, match=r"ZeroDivisionError: division by zero \(.*broken\.py:2\)"):
        resolve(f"{tmp_path}/broken.py:score")
    with pytest.raises(ConfigError, match=r"SyntaxError: .*garbled\.py, line 1"):
        resolve(f"{tmp_path}/garbled.py:score")
    with pytest.raises(ConfigError, match="SystemExit: 3"):
        resolve(f"{tmp_path}/leaving.py:score")
