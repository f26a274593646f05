import asyncio
from pathlib import Path

import pytest

from asyncrl.node.machine import doctor
from asyncrl.node.machine.diagnosis import Diagnosis, Line
from asyncrl.weights.groups.trial import TrialResult

NO_DEVICES = Path("/nonexistent")
GLOO = Line("collectives", "gloo", "good", "moved")


def state(diagnosis: Diagnosis, name: str) -> str:
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
