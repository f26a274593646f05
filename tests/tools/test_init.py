"""`asyncrl init` writes a run that is checked and whose reward is tried; it overwrites nothing."""

from pathlib import Path

import pytest

from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.tools import init as module
from asyncrl.tools.init import write_files
from tests.config.model.directories import write_model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "missing_packages", lambda names: ["torch"])  # the model's tokenizer is a stub
    write_model(Path("models/base"))
    Path("train.jsonl").write_text('{"question": "4 + 4", "answer": "8"}\n{"question": "5 + 4", "answer": "9"}\n')
    return tmp_path


def test_it_finds_everything_and_says_so() -> None:
    said: list[str] = []
    write_files(Path(), None, None, {}, said.append)
    config = load_config(Path("run.toml"))
    assert (config.model.path, config.data.train) == ("models/base", "train.jsonl")
    assert (config.data.prompt_column, config.reward.function) == ("question", "reward.py:score")
    text = "\n".join(said)
    assert "prompt from 'question', answer from 'answer'" in text
    assert "reward    reward.py:score, tried on 2 rows: 10 verdicts" in text
    assert "failed" not in text
    assert said[-3:] == [
        "  asyncrl reward try run.toml",
        "  asyncrl run run.toml --dry-run",
        "  asyncrl run run.toml",
    ]


def test_a_data_source_with_a_verifier_needs_no_stub() -> None:
    Path("train.jsonl").write_text('{"prompt": "4 + 4", "answer": "#### 8", "data_source": "openai/gsm8k"}\n')
    write_files(Path("mine"), "models/base", "train.jsonl", {}, lambda _: None)
    assert load_config(Path("mine/run.toml")).reward.function == "auto"
    assert not Path("mine/reward.py").exists()


def test_prompts_are_held_out_of_data_without_a_held_out_file() -> None:
    Path("train.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "{n}"}}\n' for n in range(100)))
    said: list[str] = []
    write_files(Path(), None, None, {}, said.append)
    assert load_config(Path("run.toml")).data.hold_out == 10
    assert "held out  no file found: 10 of 100 prompts of train.jsonl (data.hold_out), never trained on" in said


def test_a_reward_of_ones_own_takes_the_place_of_the_stub_and_is_tried() -> None:
    Path("reward.py").write_text("def score(inputs):\n    return 0.5\n")
    said: list[str] = []
    write_files(Path(), None, None, {}, said.append, own_reward="reward.py:score")
    assert load_config(Path("run.toml")).reward.function == "reward.py:score"
    assert Path("reward.py").read_text().endswith("0.5\n")
    assert any("reward.py:score, tried on 2 rows" in line for line in said)


@pytest.mark.parametrize("name", ["run.toml", "reward.py"])
def test_nothing_is_overwritten(name: str) -> None:
    Path(name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} exists, and is left alone"):
        write_files(Path(), None, None, {}, lambda _: None)
    assert Path(name).read_text() == "mine"
    assert len(list(Path().glob("r*.*"))) == 1


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, r"^--model 'nope' is not a model directory .*--text FILE`$"),
        ("nope.jsonl", r"^--model 'nope' is not a model directory .*; and no such dataset: nope\.jsonl$"),
    ],
)
def test_all_that_is_missing_is_told_at_once(data: str | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        write_files(Path(), "nope", data, {}, lambda _: None)
