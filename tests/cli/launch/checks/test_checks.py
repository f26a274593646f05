"""Checks of a run before anything starts: each says what it found, or ends with one sentence."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from asyncrl.cli.launch.checks import checks
from asyncrl.cli.launch.checks.checks import CHECKS, devices_of, resolved
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.node.machine.devices import Devices
from tests.config.model.directories import write_model


@pytest.fixture
def a_run(tmp_path: Path) -> Config:
    write_model(tmp_path / "model")
    return decode({"model": {"path": str(tmp_path / "model")}, "data": {"train": write(tmp_path, "openai/gsm8k")}})


def write(folder: Path, *sources: str) -> str:
    path = folder / "train.jsonl"
    rows = [{"prompt": "1 + 1", "answer": "2", "data_source": source} for source in sources]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return str(path)


def test_every_check_says_what_it_found(a_run: Config) -> None:
    found = {name: check(a_run, pytest.fail) for name, check in CHECKS.items()}
    assert found["devices"] == "the trainer on the CPU, rollouts on the CPU, weights over gloo"
    assert found["trackers"] == "none"
    assert found["functions"] == "advantage grpo, loss clipped, reward auto"
    assert found["data"] == "1 rows of train, with a reward for each data source: openai/gsm8k"


def test_a_row_without_a_reward_is_found(a_run: Config, tmp_path: Path) -> None:
    write(tmp_path, "openai/gsm8k", "mine")
    with pytest.raises(ConfigError, match="no reward is for rows with data_source 'mine'"):
        CHECKS["data"](a_run, pytest.fail)


def test_a_verifier_whose_library_is_missing_is_found_where_auto_would_use_it(
    a_run: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *, setting: str) -> None:
        raise ConfigError(f"{setting} {name!r} needs a library that is not installed")

    write(tmp_path, "lighteval/MATH")
    monkeypatch.setattr(checks, "resolve", missing)
    with pytest.raises(ConfigError, match="'auto': 'math' needs a library that is not installed"):
        CHECKS["data"](a_run, pytest.fail)


def test_bad_rows_that_are_skipped_are_a_remark(a_run: Config, tmp_path: Path) -> None:
    remarks: list[str] = []
    path = tmp_path / "train.jsonl"
    path.write_text(path.read_text() + '\n{"prompt": "", "answer": "2"}\n')
    data: dict[str, Any] = {"train": a_run.data.train, "on_bad_row": "skip"}
    CHECKS["data"](decode({"model": {"path": a_run.model.path}, "data": data}), remarks.append)
    assert "1 row cannot be used" in remarks[0]


def test_it_is_advised_to_apply_the_chat_template_to_texts(a_run: Config) -> None:
    remarks: list[str] = []
    (Path(a_run.model.path) / "chat_template.jinja").write_text("{{ messages[0].content }}")
    CHECKS["data"](a_run, remarks.append)
    assert [remark.partition(":")[0] for remark in remarks] == ["note"]
    assert "set data.as_chat = true" in remarks[0]
    CHECKS["data"](replace(a_run, data=replace(a_run.data, as_chat=True)), pytest.fail)


def test_it_is_advised_to_replay_the_routes_of_a_mixture_of_experts(
    a_run: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr(checks, "num_experts", lambda _: 128)
    CHECKS["model"](a_run, remarks.append)
    assert "is a mixture of 128 experts" in remarks[0]
    CHECKS["model"](replace(a_run, rollout=replace(a_run.rollout, replay_routes=True)), pytest.fail)


def test_an_adapter_to_start_from_is_checked_with_the_model(a_run: Config, tmp_path: Path) -> None:
    lora = Lora(rank=2, path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"trainer\.lora\.path=.* is not an adapter directory"):
        CHECKS["model"](replace(a_run, trainer=replace(a_run.trainer, lora=lora)), pytest.fail)


def test_too_few_devices_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    raw: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t"}}
    config = decode(raw | {"trainer": {"device": "cuda", "ranks": 4}})
    with pytest.raises(ConfigError, match="needs 4 devices, but this machine has 2"):
        devices_of(config)
    config = decode(raw | {"trainer": {"device": "cuda"}, "rollout": {"device": "cuda", "replicas": 1}})
    assert devices_of(config) == (
        Devices("cuda", ("0",), "CUDA_VISIBLE_DEVICES=0,1"),
        [Devices("cuda", ("1",), "CUDA_VISIBLE_DEVICES=0,1, less 1 device for the trainer")],
    )
    assert resolved(config, devices_of(config)[1]).weights.backend == "nccl"
