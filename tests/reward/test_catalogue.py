"""Verifiers by name, and the messages when one cannot be loaded."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.plug_in import describe
from asyncrl.reward import catalogue
from asyncrl.reward.catalogue import adapt, adapt_batches, is_compute_score, resolve
from asyncrl.reward.verifier import Abstained, Verdict, Verifier, VerifierInput, is_async, verdict_of


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


# ── test compute score ────────────────────────────────────────────────────────────────────────
# verl's reward functions are called with verl's arguments, and answered like any verifier.

INPUTS = VerifierInput(completion="it is 4", answer="4", data_source="sums", extra={"split": "train"})


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    return {"score": -1.0, "acc": ground_truth in solution_str, "pred": f"{data_source} {extra_info['split']}"}


def short(solution_str: str, ground_truth: str, method: str = "strict") -> float:
    return float(method == "flexible" and ground_truth in solution_str)


def adapted(function: Any, **options: Any) -> Verifier:
    return adapt(function, options, path="my.py:score", setting="reward.function")


async def awaited(verifier: Verifier, inputs: VerifierInput = INPUTS) -> Any:
    judged = verifier(inputs)
    return await judged if inspect.isawaitable(judged) else judged


def test_functions_are_told_by_their_arguments() -> None:
    assert is_compute_score(compute_score)
    assert is_compute_score(short)
    assert not is_compute_score(lambda inputs: 0.0)
    assert not is_compute_score(print)


def test_all_four_arguments_are_given_by_name_and_acc_is_the_accuracy() -> None:
    assert verdict_of(adapted(compute_score)(INPUTS)) == Verdict(-1.0, {"correct": 1.0, "acc": 1.0}, "sums train")


def test_a_function_of_fewer_arguments_gets_those_it_takes_and_its_options() -> None:
    assert verdict_of(adapted(short, method="flexible")(INPUTS)).reward == 1.0
    assert verdict_of(adapted(short)(INPUTS)).reward == 0.0


def test_a_function_that_takes_anything_gets_all_four() -> None:
    def takes_the_rest(solution_str: str, ground_truth: str, **kwargs: Any) -> float:
        return float(sorted(kwargs) == ["data_source", "extra_info"])

    assert adapted(takes_the_rest)(INPUTS) == 1.0


def test_an_async_function_stays_async() -> None:
    async def asked(solution_str: str, ground_truth: str) -> dict[str, Any]:
        return {"score": 0.5, "acc": 1}

    verifier = adapted(asked)
    assert is_async(verifier)
    assert verdict_of(asyncio.run(awaited(verifier))).metrics["correct"] == 1.0


def test_an_awaitable_of_a_sync_function_is_awaited() -> None:
    async def later() -> float:
        return 0.25

    def asked(solution_str: str, ground_truth: str) -> Any:
        return later()

    assert asyncio.run(awaited(adapted(asked))) == 0.25


def test_further_arguments_and_unknown_options_are_refused() -> None:
    def needs_more(solution_str: str, ground_truth: str, tokenizer: Any) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="called as verl calls it, with solution_str, ground_truth: missing"):
        adapted(needs_more)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'metod'"):
        adapted(short, metod="strict")


def of_completions(prompts: list[Any], completions: list[Any], answer: list[str], **columns: list[Any]) -> list[float]:
    text = completions[0] if isinstance(completions[0], str) else completions[0][0]["content"]
    return [float(len(prompts) == 1 and text == answer[0]) + float(columns.get("bonus", [0])[0])]


def test_a_function_with_trls_arguments_gets_lists_of_one() -> None:
    verifier = adapt_batches(of_completions, {}, path="f.py:f", setting="reward.function")
    assert verifier(VerifierInput(prompt="?", completion="7", answer="7")) == 1.0
    chat = VerifierInput(prompt=[{"role": "user", "content": "?"}], completion="7", answer="7", extra={"bonus": 2})
    assert verifier(chat) == 3.0


def test_a_function_of_completions_gets_only_what_it_takes_and_its_options() -> None:
    def short(completions: list[str], most: int = 1) -> list[float]:
        return [float(len(text) <= most) for text in completions]

    verifier = adapt_batches(short, {"most": 3}, path="f.py:short", setting="reward.function")
    assert verifier(VerifierInput(completion="abc", extra={"difficulty": 1})) == 1.0
    with pytest.raises(ConfigError, match=r"'f\.py:short' has no argument 'mosst': did you mean 'most'\?"):
        adapt_batches(short, {"mosst": 3}, path="f.py:short", setting="reward.function")


def test_a_function_of_completions_is_told_which_columns_the_row_lacks_and_has() -> None:
    def exact(prompts: list[str], completions: list[str], kind: list[str], level: list[int], **_: Any) -> list[float]:
        return [1.0]

    verifier = adapt_batches(exact, {}, path="f.py:exact", setting="reward.function")
    with pytest.raises(
        VerifierError,
        match=r"^f\.py:exact takes kind, and the row has no such column: it has answer, .*, level, prompts$",
    ):
        verifier(VerifierInput(completion="7", extra={"level": 2}))
    assert verifier(VerifierInput(completion="7", extra={"level": 2, "kind": "sum"})) == 1.0


def test_an_option_of_a_function_of_completions_goes_before_a_column_of_its_name() -> None:
    def most(completions: list[str], level: float) -> list[float]:
        return [level]

    verifier = adapt_batches(most, {"level": 0.5}, path="f.py:most", setting="reward.function")
    assert verifier(VerifierInput(completion="7", extra={"level": 2})) == 0.5


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_for_plain_texts_that_fails_on_chats_is_told_that_completions_are_messages(is_async: bool) -> None:
    def strip(completions: list[str]) -> list[float]:
        return [float(text.strip() == "7") for text in completions]

    async def awaiting(completions: list[str]) -> list[float]:
        return strip(completions)

    function = awaiting if is_async else strip
    verifier = adapt_batches(function, {}, path="f.py:strip", setting="reward.function")
    with pytest.raises(AttributeError) as failed:
        asyncio.run(awaited(verifier, VerifierInput(prompt=[{"role": "user", "content": "?"}], completion="7")))
    told = describe(failed.value, catalogue.__file__)
    assert told.startswith("AttributeError: 'list' object has no attribute 'strip'; completions of chats are lists")


def test_an_async_function_of_completions_stays_async() -> None:
    async def judge(completions: list[str], **_: Any) -> list[float]:
        return [0.5 for _ in completions]

    verifier = adapt_batches(judge, {}, path="f.py:judge", setting="reward.function")
    assert is_async(verifier)
    assert asyncio.run(awaited(verifier)) == 0.5


def test_a_function_of_completions_that_returns_no_list_of_one_fails_and_is_no_zero() -> None:
    for wrong in (None, 0.5, [], [1.0, 2.0]):
        verifier = adapt_batches(lambda completions, wrong=wrong: wrong, {}, path="f.py:f", setting="reward.function")
        with pytest.raises(VerifierError, match="expected a list of one number"):
            verifier(VerifierInput(completion=""))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_of_completions_that_returns_none_alone_fails_and_is_no_zero(is_async: bool) -> None:
    async def awaiting(completions: list[str]) -> list[None]:
        return [None]

    function = awaiting if is_async else lambda completions: [None]
    verifier = adapt_batches(function, {}, path="f.py:f", setting="reward.function")
    with pytest.raises(Abstained, match=r"returned None for the completion, and nothing else judges it$"):
        asyncio.run(awaited(verifier))


def test_a_function_is_told_by_its_completions(tmp_path: Path) -> None:
    (tmp_path / "trl.py").write_text("def f(prompts, completions, **kwargs):\n    return [1.0 for _ in completions]\n")
    assert resolve(f"{tmp_path}/trl.py:f")(VerifierInput(completion="x")) == 1.0
