import hashlib
import socket
from pathlib import Path

import pytest

from asyncrl.messages.wire import PROTOCOL
from asyncrl.node.machine.cluster import facts
from asyncrl.node.machine.cluster.facts import connection_problem, look, read_state, source_address
from asyncrl.node.machine.cluster.probe_messages import Look


def test_the_facts_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "nvidia0").touch()
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        question = Look(broker_host="127.0.0.1", broker_port=port, model=str(tmp_path), dir=str(tmp_path / "later"))
        found = look(question, {}, tmp_path)
    assert (found.broker_problem, found.address, found.interface) == ("", "127.0.0.1", "lo")
    assert found.protocol == PROTOCOL
    assert {"python", "asyncrl", "pyzmq", "torch"} <= found.versions.keys()
    assert found.devices == "cuda 0"
    assert found.free_bytes > 0
    assert found.key is None
    assert found.model_config is not None
    assert found.model_config.digest == hashlib.sha256(b"{}").hexdigest()
    assert not found.lacks_model


def test_an_address_that_no_interface_has_is_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "connection_problem", lambda host, port: "")
    found = look(Look(broker_host="127.0.0.1", broker_port=1, address="203.0.113.9"))
    assert (found.address, found.interface) == ("203.0.113.9", "")


def test_a_directory_of_a_model_that_does_not_exist_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    for model, is_missing in ((tmp_path / "none", True), (tmp_path, False)):
        found = look(Look(broker_host="127.0.0.1", broker_port=1, model=str(model)))
        assert found.model_config is not None
        assert found.model_config.problem == "No such file or directory"
        assert found.lacks_model == is_missing


def test_a_file_has_the_reason_why_it_cannot_be_read(tmp_path: Path) -> None:
    assert read_state(tmp_path / "none").problem == "No such file or directory"
    assert read_state(tmp_path).problem == "Is a directory"


def test_a_port_that_nobody_listens_on_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connection_problem("127.0.0.1", port) == ""
    assert connection_problem("127.0.0.1", port) == "Connection refused"


def test_a_name_that_does_not_exist_has_no_route() -> None:
    assert source_address("host.invalid") == ""
    assert connection_problem("host.invalid", 1) != ""
