"""Tasks of reasoning-gym: with a stand-in for the package, and with the package where it is installed."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.routing import route
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from tests.episodes.environments.agents import needs, run_beside

MODULE = "asyncrl.reward.verifiers.reasoning_gym"
JUDGES = """
import json
from pathlib import Path
from asyncrl.data.prepare.published import prepare
from asyncrl.data.prepare.reasoning_gym import reasoning_gym_rows
from asyncrl.data.table import open_rows
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import VerifierInput, verdict_of
verifier = resolve("auto")
for name in ("countdown", "chain_sum", "sudoku"):
    prepare(reasoning_gym_rows(name, 2, 1), Path(name), Path(sys.argv[1]))
    row = open_rows(Path(sys.argv[1]))[1]
    extra, answer = row["extra_info"], row["reward_model"]["ground_truth"]
    for text in (f"So: <answer>{answer}</answer>", "<answer>no</answer>", answer):
        asked = VerifierInput(completion=text, answer=answer, data_source=row["data_source"], extra=extra)
        print(name, verdict_of(verifier(asked)).reward)
"""


def score_of(name: str) -> Callable[[str | None, dict[str, Any]], float]:
    if name != "sums":
        raise ValueError(f"Dataset '{name}' not registered")
    return lambda answer, entry: 1.0 if answer == entry["answer"] else 0.25 if answer else 0.0


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for the package, with one dataset."""
    gym = ModuleType("reasoning_gym")
    gym.get_score_answer_fn = score_of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
    score = importlib.import_module(MODULE)._score
    score.cache_clear()
    yield
    score.cache_clear()


def asked(completion: str, data_source: str = "reasoning_gym/sums", entry: str | None = None) -> VerifierInput:
    whole = json.dumps({"question": "4 + 5?", "answer": "9", "metadata": {}}) if entry is None else entry
    return VerifierInput(completion=completion, answer="9", data_source=data_source, extra={"entry": whole})


@pytest.mark.parametrize(
    ("completion", "reward", "answer"),
    [
        ("<answer>8</answer> or rather <answer> 9 </answer>", 1.0, "9"),
        ("<answer>8</answer>", 0.25, "8"),
        ("9", 0.0, ""),
        ("<answer>9", 0.0, ""),
    ],
)
def test_the_last_answer_is_judged_by_the_package(completion: str, reward: float, answer: str) -> None:
    verdict = verdict_of(resolve("reasoning_gym")(asked(completion)))

    assert verdict == Verdict(reward, {"correct": float(reward >= 1)}, answer)


def test_a_whole_completion_may_be_the_answer() -> None:
    assert verdict_of(resolve("reasoning_gym", {"whole": True})(asked(" 9\n"))).reward == 1.0


def test_rows_of_the_package_are_routed_to_it() -> None:
    assert route("reasoning_gym/countdown") == "reasoning_gym"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (asked("", data_source="reasoning_gym/none"), "'none' not registered"),
        (asked("", entry="oops"), "asyncrl data prepare reasoning-gym"),
        (asked("", entry="[]"), "expected an object with question"),
    ],
)
def test_a_row_that_was_not_prepared_for_it_is_an_error_and_not_a_zero(inputs: VerifierInput, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        resolve("reasoning_gym")(inputs)


def test_without_the_package_the_run_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)

    with pytest.raises(ConfigError, match=r"install asyncrl\[reasoning-gym\]"):
        resolve("reasoning_gym")


@pytest.mark.slow("the package takes seconds to import")
@needs("reasoning_gym")
@pytest.mark.timeout(120)
def test_prepared_tasks_are_judged_by_the_package_itself(tmp_path: Path) -> None:
    lines = run_beside(JUDGES, str(tmp_path / "rows.parquet")).splitlines()

    rewards = [float(line.split()[1]) for line in lines]
    assert rewards[::3] == [1.0, 1.0, 1.0]
    assert all(reward < 0.2 for place, reward in enumerate(rewards) if place % 3)
