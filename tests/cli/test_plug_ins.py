"""`asyncrl reward try`, `loss try` and `advantage try` on the command line."""

from pathlib import Path

import pytest

from asyncrl.cli.plug_ins import full_name
from asyncrl.errors import ConfigError
from tests.cli.invoke import asyncrl


def test_reward_try_exits_with_1_if_a_verdict_fails_and_with_78_if_there_is_no_function(tmp_path: Path) -> None:
    data, file = tmp_path / "rows.jsonl", tmp_path / "my.py"
    data.write_text('{"prompt": "4 + 4", "answer": "8"}\n')
    file.write_text("def score(inputs):\n    return 1 / len(inputs.completion)\n")
    failed = asyncrl("reward", "try", file, data)
    assert failed.exit_code == 1
    assert "ZeroDivisionError at my.py:2 in 1 of 5 attempts at a verdict (20 %)" in failed.output
    assert asyncrl("reward", "try", file, data, "--completion", "8").exit_code == 0
    assert asyncrl("reward", "try", "gsmk", data).exit_code == 78


def test_reward_try_takes_a_run_file_alone_and_a_function_with_its_data(tmp_path: Path) -> None:
    data, file = tmp_path / "rows.jsonl", tmp_path / "run.toml"
    data.write_text('{"question": "4 + 4", "solution": "#### 8"}\n')
    file.write_text(
        f'[model]\npath = "/none"\n[data]\ntrain = "{data}"\nprompt_column = "question"\n'
        'answer_column = "solution"\n[reward]\nfunction = "gsm8k"\n'
    )
    tried = asyncrl("reward", "try", file, "--completion", "#### 8")
    assert tried.exit_code == 0
    assert "1 verdict in" in tried.output
    alone = asyncrl("reward", "try", "gsm8k")
    assert alone.exit_code == 2
    assert "Missing argument 'DATA'" in alone.output


def test_reward_try_names_both_signatures_of_a_function() -> None:
    text = " ".join(asyncrl("reward", "try", "--help").output.split())
    assert "def score(inputs)" in text
    assert "def compute_score(data_source, solution_str, ground_truth, extra_info)" in text


def test_loss_try_prints_a_table_and_exits_with_1_for_a_loss_with_the_wrong_sign(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text("def loss(tokens):\n    return tokens.advantages * (tokens.logprobs - tokens.old_logprobs).exp()\n")
    wrong = asyncrl("loss", "try", file)
    assert wrong.exit_code == 1
    assert "problem  on policy: it lowers the probability of good tokens" in wrong.output
    right = asyncrl("loss", "try", "clipped")
    assert right.exit_code == 0
    assert right.output.split()[:3] == ["case", "loss", "clipped"]


def test_advantage_try_prints_a_table_and_exits_with_1_for_an_estimator_with_the_wrong_sign(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text(
        "import numpy as np\n"
        "def advantage(outcomes):\n    return [np.full(one.length, -one.reward) for one in outcomes]\n"
    )
    wrong = asyncrl("advantage", "try", file)
    assert wrong.exit_code == 1
    assert "better trajectories should become likelier" in wrong.output
    right = asyncrl("advantage", "try", "rloo")
    assert right.exit_code == 0
    assert right.output.split()[:3] == ["group", "reward", "tokens"]


# ── test naming ───────────────────────────────────────────────────────────────────────────────
# A file alone names its function, if there is no doubt.


@pytest.mark.parametrize("name", ["gsm8k", "my.py:score", "package.module:score"])
def test_a_full_name_is_kept(name: str) -> None:
    assert full_name(name, ()) == name


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("def only(x): ...\ndef _hidden(): ...", "only"), ("def other(x): ...\nasync def score(x): ...", "score")],
)
def test_a_file_means_its_only_function_or_the_one_with_a_usual_name(tmp_path: Path, text: str, chosen: str) -> None:
    path = tmp_path / "my.py"
    path.write_text(text)
    assert full_name(str(path), ("compute_score", "score")) == f"{path}:{chosen}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def a(): ...\ndef b(): ...", "several functions, a, b: name the one to try, as"),
        ("x = 1", "no public function at its top level"),
        ("def (", "is no Python"),
    ],
)
def test_a_doubtful_file_is_refused_with_what_it_has(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "my.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        full_name(str(path), ())
    with pytest.raises(ConfigError, match="cannot read"):
        full_name(str(tmp_path / "none.py"), ())


def test_reward_try_takes_the_columns_of_its_data(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1", "text": "2", "answer": "wrong"}\n')
    tried = asyncrl("reward", "try", "exact", tmp_path / "rows.jsonl", "--answer-column", "text", "--completion", "2")
    assert tried.exit_code == 0, tried.output
    assert "1 of 1 correct" in tried.output
    refused = asyncrl("reward", "try", tmp_path / "run.toml", "--answer-column", "text")
    assert refused.exit_code == 2
    assert "a run file names its columns" in refused.stderr
