"""A reward function is tried on rows of a dataset, with answers that it should and should not reward."""

from pathlib import Path

import pytest

from asyncrl.cli.plug_ins.reward import completions, read_rows, summary_lines, trial_config, try_reward
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages import Prompt

HONEST = "def score(inputs):\n    return float(inputs.answer in inputs.completion)\n"
FRAGILE = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
    "    return {'score': float(solution_str.split('boxed{')[1].startswith(ground_truth)), 'acc': True}\n"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "4 + 4", "answer": "8"}\n{"prompt": "5 + 4", "answer": "9"}\n')
    return path


def tried(tmp_path: Path, source: str, data: Path, *given: str, number: int = 5) -> tuple[bool, list[str]]:
    file, said = tmp_path / "my.py", list[str]()
    file.write_text(source)
    name = source.partition("(")[0].removeprefix("def ")
    fine = try_reward(trial_config(f"{file}:{name}", data), number, given, said.append)
    return fine, said


def test_each_row_is_graded_with_its_reference_and_with_garbage(tmp_path: Path, data: Path) -> None:
    fine, said = tried(tmp_path, HONEST, data)
    assert fine
    assert said[0] == "row 0  answer 8"
    assert [line.split()[0] for line in said[1:6]] == ["reference", "####", "boxed", "nothing", "nonsense"]
    assert said[6] == "row 1  answer 9"
    assert any(line.split() == ["reference", "mean", "reward", "1,", "2", "of", "2", "correct"] for line in said)
    assert not any(line.startswith(("note", "failed")) for line in said)


def test_failures_are_summed_up_by_cause(tmp_path: Path, data: Path) -> None:
    fine, said = tried(tmp_path, FRAGILE, data)
    assert not fine
    assert said[-1] == f"failed      IndexError in 6 of 10 verdicts: list index out of range ({tmp_path / 'my.py'}:2)"
    assert (
        f"  reference   failed: the function raised IndexError: list index out of range ({tmp_path / 'my.py'}:2)"
        in said
    )


def test_a_function_that_rewards_no_form_of_the_reference_is_noticed(tmp_path: Path, data: Path) -> None:
    _, said = tried(tmp_path, "def score(inputs):\n    return 0.5\n", data, number=1)
    assert said[-1].startswith("note: no form of the reference answer gets more than garbage")


def test_a_given_completion_is_the_only_one_tried(tmp_path: Path, data: Path) -> None:
    fine, said = tried(tmp_path, HONEST, data, "it is 8")
    assert fine
    assert [line.split()[:3] for line in said if line.startswith("  given")] == [
        ["given", "reward", "1"],
        ["given", "reward", "0"],
        ["given", "mean", "reward"],
    ]


def test_completions_have_a_name_each() -> None:
    assert completions(Prompt(text="q", answer="a"), ["x", "y"]) == {"given 1": "x", "given 2": "y"}
    assert completions(Prompt(text="q", answer="{8}"), [])["boxed"] == "\\boxed{{8}}"


def test_rows_and_functions_that_cannot_be_used_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(DataError, match="no such dataset"):
        read_rows(trial_config("gsm8k", tmp_path / "none.parquet"), 5)
    with pytest.raises(ConfigError, match="data_source"):
        read_rows(trial_config("auto", data), 5)
    with pytest.raises(ConfigError, match=r"reward\.workerz"):
        trial_config("gsm8k", data, ["reward.workerz=2"])


def test_without_trials_there_is_nothing_to_say() -> None:
    assert summary_lines([]) == ["0 verdicts in 0.00 s"]
