"""
Mistakes of newcomers and operators: each is one sentence with the culprit and what to do, and an exit code.

In DIR there are toy.toml with its model and data, a damaged file of each kind, and a run that is over.
"""

from pathlib import Path

import pytest

from asyncrl.config.run_file import load_config, to_toml
from asyncrl.records.run_directory import RunDirectory
from tests.cli.invoke import asyncrl

CONFIG, USAGE = 78, 2

MISTAKES: list[tuple[str, int, str]] = [
    # the run file
    ("run toy.tmol --dry-run", CONFIG, "no such config file: toy.tmol; did you mean toy.toml?"),
    ("run . --dry-run", CONFIG, ". is a folder, not a config file"),
    ("run broken.toml --dry-run", CONFIG, "broken.toml is not TOML"),
    ("run bytes.toml --dry-run", CONFIG, "bytes.toml is not TOML"),
    ("run train.parquet --dry-run", CONFIG, "train.parquet is not TOML"),
    ("run empty.toml --dry-run", CONFIG, "model"),
    ("run toy.toml --dry-run --set trainer.learning_rate=1", CONFIG, "did you mean 'trainer.lr'?"),
    ("run toy.toml --dry-run --set trianer.lr=1", CONFIG, "did you mean 'trainer.lr'?"),
    ("run toy.toml --dry-run --set trainer.lr", CONFIG, "expected section.key=value"),
    ("run toy.toml --dry-run --set trainer.lr=fast", CONFIG, "trainer.lr"),
    ("run toy.toml --dry-run --set trainer.lr=-1", CONFIG, "trainer.lr"),
    ("run toy.toml --dry-run --set run.steps=0", CONFIG, "run.steps"),
    ("run toy.toml --dry-run --set run.steps=2.5", CONFIG, "run.steps"),
    ("run toy.toml --dry-run --set run.steps=-3", CONFIG, "run.steps"),
    ("run toy.toml --dry-run --set run.steps=true", CONFIG, "run.steps"),
    ("run toy.toml --dry-run --set schedule=2", CONFIG, "schedule is a section"),
    ("run toy.toml --dry-run --set run.steps.x=2", CONFIG, "'steps' is a value, not a section"),
    ("run toy.toml --dry-run --set schedule.staleness=often", CONFIG, "schedule.staleness"),
    ("run toy.toml --dry-run --set model.dtype=fp16", CONFIG, "model.dtype"),
    ("run toy.toml --dry-run --set trainer.device=gpu", CONFIG, "trainer.device"),
    ("run toy.toml --dry-run --set trainer.device=cuda", CONFIG, "cuda"),
    ("run toy.toml --dry-run --set algorithm.loss=clip", CONFIG, "did you mean 'clipped'?"),
    ("run toy.toml --dry-run --set algorithm.advantage=gpro", CONFIG, "did you mean 'grpo'?"),
    ("run toy.toml --dry-run --set sampling.temperature=0", CONFIG, "sampling.temperature is 0"),
    ("run toy.toml --dry-run --set sampling.max_tokens=999999", CONFIG, "trainer.max_tokens_per_micro_batch"),
    ("run toy.toml --dry-run --set evaluation.top_p=0.9", CONFIG, "evaluation.top_p is only read with a temperature"),
    ("run toy.toml --dry-run --set run.on_hangup=ignore", CONFIG, "run.on_hangup"),
    ("run toy.toml --dry-run --set checkpoint.keep_best=true", CONFIG, "data.held_out, which is empty"),
    ("run toy.toml --dry-run --set broker.bind=localhost:5570", CONFIG, "expected tcp://HOST:PORT"),
    ("run toy.toml --dry-run --set broker.bind=tcp://0.0.0.0:5570", CONFIG, "needs keys"),
    ("run toy.toml --dry-run --set rollout.engine=vlm", CONFIG, "did you mean 'vllm'?"),
    # model and data
    ("run toy.toml --dry-run --set model.path=modle", CONFIG, "did you mean model?"),
    ("run toy.toml --dry-run --set model.path=Qwen/Qwen3-0.6B", CONFIG, "hf download Qwen/Qwen3-0.6B"),
    ("run toy.toml --dry-run --set data.train=trian.parquet", CONFIG, "did you mean train.parquet?"),
    ("run toy.toml --dry-run --set data.train=toy.toml", CONFIG, "toml is neither parquet nor JSONL"),
    ("run toy.toml --dry-run --set data.train=none.jsonl", CONFIG, "none.jsonl"),
    ("run toy.toml --dry-run --set data.train=cut.parquet", CONFIG, "cut.parquet"),
    ("run toy.toml --dry-run --set data.prompt_column=question", CONFIG, "it has prompt, answer, data_source"),
    ("run toy.toml --dry-run --set data.held_out=nope.jsonl", CONFIG, "no such dataset: nope.jsonl (data.held_out)"),
    # rewards
    ("run toy.toml --dry-run --set reward.function=auto", CONFIG, "no reward is for rows with data_source 'toy'"),
    ("run toy.toml --dry-run --set reward.function=gsm", CONFIG, "did you mean 'gsm8k'?"),
    ("run toy.toml --dry-run --set reward.function=nope.py:score", CONFIG, "there is no file"),
    ("run toy.toml --dry-run --set reward.options.metod=strict", CONFIG, "did you mean 'method'?"),
    ("run toy.toml --dry-run --set reward.function=episode", CONFIG, "there is none; set one"),
    ("run toy.toml --dry-run --set environment.tools=['calculater']", CONFIG, "'calculater'"),
    ("reward try gsm8k", USAGE, "Missing argument 'DATA'"),
    ("reward try nope.py train.parquet", CONFIG, "cannot read nope.py"),
    ("reward try bytes.py train.parquet", CONFIG, "bytes.py is no Python"),
    # commands and runs
    ("rnu toy.toml", USAGE, "No such command 'rnu'"),
    ("run toy.toml --dryrun", USAGE, "--dryrun"),
    ("run", USAGE, "Missing argument 'CONFIG'"),
    ("run toy.toml --device-memory 80GB", CONFIG, "--dry-run"),
    ("run toy.toml --metrics localhost:x", CONFIG, "localhost:x"),
    ("run toy.toml --dry-run --set run.steps=3 --traces=yes", USAGE, "--traces"),
    ("resume nope", CONFIG, "is not a run directory"),
    ("resume over --steps 1", CONFIG, "--steps 1"),
    ("resume over --skip-step 99", CONFIG, "--skip-step 99"),
    ("resume over --stop-when accuracy", CONFIG, "such as 'accuracy >= .95'"),
    (
        "run toy.toml --dry-run --set run.stop_when=acuracy>.9 --set data.held_out=train.parquet",
        CONFIG,
        "did you mean 'accuracy'?",
    ),
    ("status nope", CONFIG, "nope is neither a run directory nor a broker's address"),
    ("status tcp://127.0.0.1", CONFIG, "tcp://127.0.0.1"),
    ("status tcp://127.0.0.1:1", CONFIG, "tcp://127.0.0.1:1"),
    ("attach nope", CONFIG, "nope is neither a run directory"),
    ("attach over", CONFIG, "was not started by asyncrl run"),
    ("logs over rollout-9", CONFIG, "over"),
    ("logs tcp://127.0.0.1:5570", USAGE, "is an address, but this command reads files"),
    ("ls tcp://127.0.0.1:5570", USAGE, "is an address, but this command reads files"),
    ("stop nope", CONFIG, "nope"),
    ("set over trainer.lr=1", 69, "over"),
    ("pause over", 69, "over"),
    ("samples nope", CONFIG, "nope"),
    ("report nope", CONFIG, "no such run: nope"),
    ("audit nope", CONFIG, "nope"),
    ("why nope", CONFIG, "nope"),
    ("events nope", CONFIG, "nope"),
    ("dashboard nope", CONFIG, "nope"),
    ("ls nope", CONFIG, "there is no folder nope"),
    ("export over -o model", CONFIG, "model"),
    ("export over -o out --step first", CONFIG, "first"),
    ("export over -o out", CONFIG, "checkpoint"),
    ("eval model", CONFIG, "give --data FILE"),
    ("eval modle --data train.parquet", CONFIG, "modle"),
    ("sample modle --prompt 2+2", CONFIG, "modle"),
    ("config explain trainer.learning", CONFIG, "trainer"),
    ("config show nope.toml", CONFIG, "no such config file: nope.toml"),
    ("plan nope.toml", CONFIG, "nope.toml"),
    ("data check nope.jsonl", CONFIG, "no such dataset: nope.jsonl"),
    ("data check train.parquet --max-prompt-tokens 5", USAGE, "needs --model"),
    ("data prepare jsonl nope.jsonl -o out.parquet", CONFIG, "nope.jsonl"),
    ("example quickstrat", CONFIG, "quickstrat"),
    ("import-verl nope.sh", CONFIG, "nope.sh"),
    ("keys list --keys nope", CONFIG, "nope"),
    ("services install --systemd --config nope.toml --to units", CONFIG, "nope.toml"),
    ("toy random out --text nope.txt", CONFIG, "nope.txt"),
    ("doctor nope.toml", CONFIG, "nope.toml"),
    ("track over wanbd", CONFIG, "wanbd"),
]


@pytest.fixture
def folder(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "broken.toml").write_text("[run\nsteps = 3\n")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe(")
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:-20])
    over = RunDirectory.create(tmp_path, "over")
    over.write_config(to_toml(load_config(config)))
    (over.logs / "broker-0.log").write_text("")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "code", "culprit"), MISTAKES, ids=[command for command, _, _ in MISTAKES])
def test_a_mistake_is_one_sentence_with_its_culprit(folder: Path, command: str, code: int, culprit: str) -> None:
    result = asyncrl(*command.split())
    assert isinstance(result.exception, SystemExit), result.exception
    first, *more = result.stderr.splitlines()[-1 if code == USAGE else 0 :]
    assert result.exit_code == code, result.stderr
    assert culprit in " ".join([first, *more])
    assert first.startswith("Error: " if code == USAGE else "asyncrl: ")
    assert not more or first == f"asyncrl: {len(more)} mistakes:"


def test_several_mistakes_are_told_at_once(folder: Path) -> None:
    def told(*settings: str) -> list[str]:
        result = asyncrl("run", "toy.toml", "--dry-run", *(f"--set={setting}" for setting in settings))
        assert result.exit_code == CONFIG
        return result.stderr.splitlines()

    first, *keys = told("run.directory=x", "trainer.learning_rate=1", "checkpoint.every=3")
    assert first == "asyncrl: 3 mistakes:"
    assert [line.partition("'")[2].partition("'")[0] for line in keys] == [
        "run.directory", "trainer.learning_rate", "checkpoint.every"
    ]  # fmt: skip
    _, *values = told("run.steps=0", "trainer.lr=fast", "model.dtype=fp16")
    assert [line.split()[0] for line in values] == ["run.steps:", "model.dtype:", "trainer.lr:"]
    _, *contradictions = told("run.steps=1", "trainer.warmup_steps=9", "checkpoint.keep_best=true")
    assert [line.split()[0] for line in contradictions] == ["trainer.warmup_steps", "checkpoint.keep_best"]
    _, *found = told("model.path=nope", "data.train=trian.parquet", "reward.function=gsm")
    assert [line.split()[0] for line in found] == ["reward.function:", "model.path", "no"]


def test_there_are_sixty_mistakes_and_no_two_alike() -> None:
    assert len({command for command, _, _ in MISTAKES}) == len(MISTAKES) >= 60
