"""A reward function is tried on rows of a dataset, with answers that it should and should not reward."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.trajectory import Prompt
from asyncrl.reward.verifier import Verdict
from asyncrl.tools.plug_ins.reward import (
    Trial,
    completions,
    read_rows,
    run_config,
    summary_lines,
    trial_config,
    try_reward,
)

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
    fine = try_reward(trial_config(f"{file}:{name}", data, said.append), number, given, said.append)
    return fine, said


def test_each_row_is_graded_with_its_reference_and_with_garbage(tmp_path: Path, data: Path) -> None:
    fine, said = tried(tmp_path, HONEST, data)
    assert fine
    assert said[0] == "row 0  answer 8"
    assert [line.split()[0] for line in said[1:6]] == ["reference", "####", "\\boxed{reference}", "nothing", "nonsense"]
    assert said[6] == "row 1  answer 9"
    assert any(line.split() == ["reference", "mean", "reward", "1,", "2", "of", "2", "correct"] for line in said)
    assert not any(line.startswith(("note", "failed")) for line in said)


def test_failures_are_summed_up_by_cause(tmp_path: Path, data: Path) -> None:
    fine, said = tried(tmp_path, FRAGILE, data)
    assert not fine
    cause = "IndexError at my.py:2 in 6 of 10 attempts at a verdict (60 %), such as 'list index out of range'"
    assert said[-1] == f"failed      {cause}"
    assert (
        f"  reference          failed: the function raised IndexError: list index out of range ({tmp_path / 'my.py'}:2)"
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
    assert completions(Prompt(text="q", answer="{8}"), [])["\\boxed{reference}"] == "\\boxed{{8}}"


def test_rows_and_functions_that_cannot_be_used_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(DataError, match="no such dataset"):
        read_rows(trial_config("gsm8k", tmp_path / "none.parquet", pytest.fail), 5)
    with pytest.raises(ConfigError, match="data_source"):
        read_rows(trial_config("auto", data, pytest.fail), 5)
    with pytest.raises(ConfigError, match=r"reward\.workerz"):
        trial_config("gsm8k", data, pytest.fail, ["reward.workerz=2"])


def test_without_trials_there_is_nothing_to_say() -> None:
    assert summary_lines([]) == ["0 verdicts in 0.00 s"]
    assert summary_lines([Trial(0, "given", 0.5, Verdict(1.0, {"correct": 1.0}))])[0] == "1 verdict in 0.50 s"


def test_other_columns_are_guessed_unless_they_are_named(tmp_path: Path) -> None:
    said, path = list[str](), tmp_path / "rows.jsonl"
    path.write_text('{"question": "4 + 4", "solution": "8", "other": "9"}\n')
    rows = read_rows(trial_config("gsm8k", path, said.append), 5)
    assert (rows[0].text, rows[0].answer) == ("4 + 4", "8")
    assert said == [f"{path}: prompt from 'question', answer from 'solution'"]
    named = trial_config("gsm8k", path, said.append, ["data.answer_column=other"])
    assert read_rows(named, 5)[0].answer == "9"
    with pytest.raises(DataError, match=r"no column 'text': it has .*; name it with --prompt-column NAME"):
        trial_config("gsm8k", path, said.append, ["data.prompt_column=text"])


def test_a_run_file_gives_function_data_and_columns(tmp_path: Path, data: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f'[model]\npath = "m"\n[data]\ntrain = "{data}"\nheld_out = "none"\nprompt_column = "answer"\n'
        'as_chat = true\n[reward]\nfunction = "gsm8k"\n'
    )
    config = run_config(file, ["reward.workers=3"])
    assert (config.reward.function, config.reward.workers) == ("gsm8k", 3)
    assert [row.chat[0]["content"] for row in read_rows(config, 5)] == ["8", "9"]


def test_the_completions_of_a_row_are_compared_as_one_group(tmp_path: Path, data: Path) -> None:
    file, said = tmp_path / "my.py", list[str]()
    file.write_text(
        "def score(inputs):\n    return 0.5\n"
        "def longest(members):\n    longest = max(len(member.completion) for member in members)\n"
        "    return [float(len(member.completion) == longest) for member in members]\n"
    )
    config = trial_config(f"{file}:score", data, said.append, [f"reward.group={file}:longest"])
    assert try_reward(config, 1, ["it is 8", "8"], said.append)
    assert [line.split("  ")[1] for line in said[1:5]] == [
        "given 1",
        "given 2",
        "in the group: given 1",
        "in the group: given 2",
    ]
    assert [line.split("reward ")[1].split()[0] for line in said[1:5]] == ["0.5", "0.5", "1", "0"]


def test_a_group_function_that_fails_is_a_failure_of_each_of_its_members(tmp_path: Path, data: Path) -> None:
    file, said = tmp_path / "my.py", list[str]()
    file.write_text("def score(inputs):\n    return 0.5\ndef none(members):\n    return []\n")
    config = trial_config(f"{file}:score", data, said.append, [f"reward.group={file}:none"])
    assert not try_reward(config, 1, ["it is 8", "8"], said.append)
    lines = [line for line in said if line.startswith("  in the group: ")]
    assert ["failed: the group function returned 0 verdicts on 2 trajectories" in line for line in lines] == [True] * 2


def test_a_part_that_abstains_on_every_completion_is_told() -> None:
    metrics = [{"correct": 1.0, "a.abstained": 1.0, "b.abstained": share} for share in (0.0, 1.0)]
    done = [Trial(0, "given", 0.1, Verdict(1.0, each)) for each in metrics]
    assert summary_lines(done)[-1] == "note: reward part 'a' abstained on every completion"
