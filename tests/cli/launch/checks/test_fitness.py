"""The diagnosis of one run file: a line for each need, and the verdict by those alone."""

import asyncio
from typing import Any

import pytest

from asyncrl.cli.launch.checks import fitness
from asyncrl.cli.launch.checks.checks import Say
from asyncrl.cli.launch.checks.fitness import diagnose_run
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.node.machine.diagnosis import Diagnosis, Line

GOOD = [Line("run", "memory", "good", "fits: 1 GiB")]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with all packages and a CPU, on which two processes reach each other."""

    async def collective(kind: str, *_: Any, **__: Any) -> Line:
        return Line("collectives", kind, "good", "fast")

    monkeypatch.setattr(fitness, "torch_line", lambda **_: Line("installed", "torch", "good", "2"))
    monkeypatch.setattr(fitness, "missing_packages", lambda _: [])
    monkeypatch.setattr(fitness, "device_line", lambda kind, **_: (2, Line("devices", kind, "good", "2")))
    monkeypatch.setattr(fitness, "collective_line", collective)
    monkeypatch.setattr(fitness, "CHECKS", {"data": lambda *_: "4 rows"})
    monkeypatch.setattr(fitness, "examine", lambda *_: GOOD)
    return monkeypatch


def a_run(**sections: Any) -> Config:
    return decode({"model": {"path": "m"}, "data": {"train": "t"}, **sections})


def diagnosed(config: Config) -> Diagnosis:
    return asyncio.run(diagnose_run(config))


def whats(diagnosis: Diagnosis) -> dict[str, str]:
    return {line.name: line.what for line in diagnosis.lines}


def test_a_run_that_has_everything_is_fit(machine: pytest.MonkeyPatch) -> None:
    diagnosis = diagnosed(a_run())
    assert diagnosis.is_fit
    assert {"asyncrl", "torch", "transformers", "cpu", "data", "memory"} <= whats(diagnosis).keys()
    assert whats(diagnosis)["data"] == "4 rows"


def test_what_this_run_does_not_need_is_not_looked_for(machine: pytest.MonkeyPatch) -> None:
    assert not {"cuda", "npu", "vllm", "nccl"} & whats(diagnosed(a_run())).keys()


def test_all_that_is_missing_is_named_and_not_only_the_first(machine: pytest.MonkeyPatch) -> None:
    def refuse(sentence: str) -> Any:
        def check(_: Config, __: Say) -> str:
            raise ConfigError(sentence)

        return check

    machine.setattr(fitness, "CHECKS", {"engine": refuse("no engine"), "data": refuse("no data")})
    machine.setattr(fitness, "examine", lambda *_: [Line("run", "memory", "bad", "see below", "too large")])
    diagnosis = diagnosed(a_run())
    assert not diagnosis.is_fit
    assert diagnosis.problems == ["no engine", "no data", "too large"]


def test_missing_packages_leave_out_what_they_would_check(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(fitness, "missing_packages", lambda _: ["transformers"])
    diagnosis = diagnosed(a_run())
    assert diagnosis.problems == [
        "transformers not installed, and trainers and rollouts need it: pip install 'asyncrl[train]'"
    ]
    assert "memory" not in whats(diagnosis)
    assert whats(diagnosis)["data"] == "4 rows"


def test_the_library_of_the_run_is_tried_on_the_devices_of_the_run(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    config = a_run(trainer={"device": "cuda"}, rollout={"device": "cuda"})
    lines = diagnosed(config).lines
    assert [(line.section, line.name) for line in lines if line.section in ("devices", "collectives")] == [
        ("devices", "cuda"),
        ("collectives", "cuda"),
    ]


def test_epochs_are_shown_as_steps(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(fitness, "resolve_steps", lambda _: a_run(run={"steps": 1200}))
    assert whats(diagnosed(a_run(run={"epochs": 3})))["steps"] == "1,200 in 3 epochs"


def test_a_check_that_breaks_is_a_line_too(machine: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Line]:
        raise ConfigError("it took too long")

    machine.setattr(fitness, "examine", broken)
    assert diagnosed(a_run()).problems == ["it took too long"]
