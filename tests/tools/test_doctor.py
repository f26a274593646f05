"""The diagnosis of one run file: a line for each need, and the verdict by those alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.config import Config
from asyncrl.errors import ConfigError
from asyncrl.runtime.checks import Say
from asyncrl.runtime.machine import CheckLine, DoctorReport
from asyncrl.tools import doctor
from asyncrl.tools.doctor import diagnose_run
from asyncrl.weights.groups.trial import TrialResult
from tests.config.configs import made

GOOD = [CheckLine("run", "memory", "good", "fits: 1 GiB")]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with all packages and a CPU, on which two processes reach each other."""

    async def collective(kind: str, *_: Any, **__: Any) -> CheckLine:
        return CheckLine("collectives", kind, "good", "fast")

    monkeypatch.setattr(doctor, "torch_line", lambda **_: CheckLine("installed", "torch", "good", "2"))
    monkeypatch.setattr(doctor, "missing_packages", lambda _: [])
    monkeypatch.setattr(doctor, "device_line", lambda kind, **_: (2, CheckLine("devices", kind, "good", "2")))
    monkeypatch.setattr(doctor, "collective_line", collective)
    monkeypatch.setattr(doctor, "CHECKS", {"data": lambda *_: "4 rows"})
    monkeypatch.setattr(doctor, "examine", lambda *_: GOOD)
    return monkeypatch


def diagnosed(config: Config) -> DoctorReport:
    return asyncio.run(diagnose_run(config))


def whats(diagnosis: DoctorReport) -> dict[str, str]:
    return {line.name: line.what for line in diagnosis.lines}


def test_a_model_that_is_only_named_hides_no_other_problem(machine: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise ConfigError("too few devices; use more")

    machine.setattr(doctor, "CHECKS", {"devices": fails, "model": fails})
    machine.setenv("HF_HUB_OFFLINE", "1")
    diagnosis = diagnosed(made(model={"path": "nobody/nothing"}))
    assert not diagnosis.is_fit
    devices, named = diagnosis.problems
    assert devices == "too few devices; use more"
    assert "nobody/nothing" in named
    assert "model" not in whats(diagnosis)


def test_a_run_that_has_everything_is_fit(machine: pytest.MonkeyPatch) -> None:
    diagnosis = diagnosed(made())
    assert diagnosis.is_fit
    assert {"asyncrl", "torch", "transformers", "cpu", "data", "memory"} <= whats(diagnosis).keys()
    assert whats(diagnosis)["data"] == "4 rows"


def test_what_this_run_does_not_need_is_not_looked_for(machine: pytest.MonkeyPatch) -> None:
    assert not {"cuda", "npu", "vllm", "nccl"} & whats(diagnosed(made())).keys()


def test_all_that_is_missing_is_named_and_not_only_the_first(machine: pytest.MonkeyPatch) -> None:
    def refuse(sentence: str) -> Any:
        def check(_: Config, __: Say) -> str:
            raise ConfigError(sentence)

        return check

    machine.setattr(doctor, "CHECKS", {"engine": refuse("no engine"), "data": refuse("no data")})
    machine.setattr(doctor, "examine", lambda *_: [CheckLine("run", "memory", "bad", "see below", "too large")])
    diagnosis = diagnosed(made())
    assert not diagnosis.is_fit
    assert diagnosis.problems == ["no engine", "no data", "too large"]


def test_missing_packages_leave_out_what_they_would_check(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "missing_packages", lambda _: ["transformers"])
    diagnosis = diagnosed(made())
    assert diagnosis.problems == [
        "transformers not installed, and trainers and rollouts need it: pip install 'asyncrl[train]'"
    ]
    assert "memory" not in whats(diagnosis)
    assert whats(diagnosis)["data"] == "4 rows"


def test_the_library_of_the_run_is_tried_on_the_devices_of_the_run(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    config = made(trainer={"device": "cuda"}, rollout={"device": "cuda"})
    lines = diagnosed(config).lines
    assert [(line.section, line.name) for line in lines if line.section in ("devices", "collectives")] == [
        ("devices", "cuda"),
        ("collectives", "cuda"),
    ]


def test_epochs_are_shown_as_steps(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(doctor, "resolve_steps", lambda _: made(run={"steps": 1200}))
    assert whats(diagnosed(made(run={"epochs": 3})))["steps"] == "1,200 in 3 epochs"


def test_a_check_that_breaks_is_a_line_too(machine: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[CheckLine]:
        raise ConfigError("it took too long")

    machine.setattr(doctor, "examine", broken)
    assert diagnosed(made()).problems == ["it took too long"]


# ── test doctor ───────────────────────────────────────────────────────────────────────────────

NO_DEVICES = Path("/nonexistent")
GLOO = CheckLine("collectives", "gloo", "good", "moved")


def state(diagnosis: DoctorReport, name: str) -> str:
    return next(line.state for line in diagnosis.lines if line.name == name)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the libraries that were tried; all of them work."""
    backends = []

    async def works(backend: str, devices: tuple[str, str], num_bytes: int, deadline_s: float) -> TrialResult:
        backends.append(backend)
        return TrialResult(seconds=0.004)

    monkeypatch.setattr(doctor, "trial", works)
    return backends


def test_a_machine_without_accelerators_serves_every_role_over_gloo(tried: list[str], tmp_path: Path) -> None:
    found = asyncio.run(doctor.diagnose({"XDG_CACHE_HOME": str(tmp_path)}, dev=NO_DEVICES))
    assert tried == ["gloo"]
    assert found.is_fit
    assert found.problems == []
    assert [state(found, role) for role in doctor.ROLES] == ["good"] * 4
    assert [state(found, name) for name in ("gloo", "nccl", "npu")] == ["good", "absent", "absent"]


def test_a_library_that_fails_costs_the_roles_that_move_weights_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fails(backend: str, devices: tuple[str, str], num_bytes: int, deadline_s: float) -> TrialResult:
        return TrialResult(failure="connection refused")

    monkeypatch.setattr(doctor, "trial", fails)
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    found = asyncio.run(doctor.diagnose(environment, dev=NO_DEVICES))
    problem = "gloo does not work between cpu and cpu (connection refused): see that the loopback interface is up"
    assert found.problems == [problem]
    assert found.is_fit
    assert [state(found, role) for role in doctor.ROLES] == ["good", "good", "absent", "absent"]

    asked = asyncio.run(doctor.diagnose(environment, "trainer", dev=NO_DEVICES))
    assert not asked.is_fit
    assert asked.problems == [problem, "the role of a trainer needs a collective library that works"]


def test_without_torch_a_machine_can_be_broker_and_reward_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    monkeypatch.setattr(doctor, "missing_packages", lambda names: [name for name in names if name == "torch"])
    found = asyncio.run(doctor.diagnose({"XDG_CACHE_HOME": str(tmp_path)}, dev=NO_DEVICES))
    assert found.is_fit
    assert [state(found, role) for role in ("torch", *doctor.ROLES)] == ["absent", "good", "good", "absent", "absent"]
    assert doctor.role_line("trainer", found.lines).what == "needs torch (pip install 'asyncrl[train]')"


def test_torch_without_numpy_is_told_and_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    imported: list[str] = []
    monkeypatch.setattr(doctor, "import_module", imported.append)
    monkeypatch.setattr(doctor, "missing_packages", lambda names: [name for name in names if name == "numpy"])
    found = asyncio.run(doctor.diagnose({"XDG_CACHE_HOME": str(tmp_path)}, dev=NO_DEVICES))
    assert found.problems == ["torch needs numpy: pip install 'asyncrl[train]'"]
    assert (imported, found.is_fit) == ([], False)


def test_a_driver_whose_devices_torch_cannot_use_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci_manager").touch()
    count, line = doctor.device_line("npu", tmp_path)
    assert (count, line.state, line.what) == (0, "bad", "the driver has 1, torch none")
    assert "npu devices need torch_npu" in line.problem


def test_an_npu_alone_cannot_be_tried(tried: list[str]) -> None:
    line = asyncio.run(doctor.collective_line("npu", 1, 1 << 20, needed=True))
    assert line.state == "bad"
    assert line.problem == "hccl was not tried: it needs two npu devices, and torch sees 1"
    assert tried == []


def test_each_thing_that_an_ascend_machine_lacks_is_one_sentence() -> None:
    found = asyncio.run(doctor.diagnose_npu({}, NO_DEVICES))
    assert not found.is_fit
    cann, driver, devices = found.problems
    assert "source its set_env.sh" in cann
    assert "its driver is not installed" in driver
    assert "npu devices need torch_npu" in devices


def test_the_line_of_a_role_names_its_engines_and_collective_libraries() -> None:
    line = doctor.role_line("rollout", [GLOO])
    assert line.state == "good"
    assert line.what.startswith("with transformers")
    assert line.what.endswith("weights over gloo")
