"""A folder that has the logs of nodes alone says which run they joined, and where that is."""

import json
from pathlib import Path

import pytest

from asyncrl.cli.logs import Events
from asyncrl.cli.status import opened
from asyncrl.errors import ConfigError
from asyncrl.records.node_folder import node_folder
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import read_run, require_run


def logged(folder: Path, role: str, *lines: object) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "logs" / f"{role}.log").write_text("\n".join(texts))


def joined(run: str, at: str, broker: str = "tcp://10.0.0.1:5570") -> dict[str, str]:
    return {"event": "node.joined", "run": run, "path": f"/data/{run}", "broker": broker, "timestamp": at}


def test_the_last_run_that_was_joined_is_told_with_its_place_and_its_broker(tmp_path: Path) -> None:
    logged(tmp_path, "rollout", joined("old", "2026-01-01T00:00:00Z"), joined("my", "2026-01-03T00:00:00Z"))
    logged(tmp_path, "trainer", "Traceback about node.joined", joined("old", "2026-01-02T00:00:00Z"), '{"node.joined')
    assert node_folder(tmp_path) == (
        f"{tmp_path} is no run directory, but the folder of services of this machine, which have joined the run my: "
        "its directory, /data/my, is on the machine of its broker, tcp://10.0.0.1:5570; give this command there; here, "
        f"`asyncrl logs {tmp_path}` shows their logs, and `asyncrl status tcp://10.0.0.1:5570` with an operator's key "
        "asks the broker"
    )


def test_nodes_that_have_joined_no_run_are_told_too(tmp_path: Path) -> None:
    logged(tmp_path, "rollout", {"event": "broker.awaited"})
    assert node_folder(tmp_path).endswith(f"which have joined no run yet; `asyncrl logs {tmp_path}` shows their logs")


@pytest.mark.parametrize("read", [require_run, read_run, Events, RunDirectory.reopen, lambda path: opened(str(path))])
def test_every_command_that_reads_a_run_says_so(read, tmp_path: Path) -> None:
    logged(tmp_path, "rollout", joined("my", "2026-01-03T00:00:00Z"))
    with pytest.raises(ConfigError, match="have joined the run my"):
        read(tmp_path)


def test_a_folder_with_the_brokers_log_or_with_a_run_is_none_of_nodes(tmp_path: Path) -> None:
    assert node_folder(tmp_path) == ""
    logged(tmp_path, "rollout", joined("my", "2026-01-03T00:00:00Z"))
    logged(tmp_path, "broker", "{}")
    assert node_folder(tmp_path) == ""
    (tmp_path / "logs" / "broker.log").unlink()
    (tmp_path / "config.toml").touch()
    assert node_folder(tmp_path) == ""
