import os

import pytest

from asyncrl.errors import ConfigError
from asyncrl.weights.interface import interface_name, settings, told


def test_an_address_is_found_on_its_interface() -> None:
    assert interface_name("127.0.0.1") == "lo"


def test_an_address_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"weights\.interface is '203\.0\.113\.9', which no .*127\.0\.0\.1 \(lo\)"):
        interface_name("203.0.113.9")


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("nccl", {"TORCH_NCCL_BLOCKING_WAIT": "1", "NCCL_SOCKET_IFNAME": "=lo"}),
        ("hccl", {"TORCH_HCCL_BLOCKING_WAIT": "1", "HCCL_SOCKET_IFNAME": "=lo"}),
    ],
)
def test_each_library_is_told_in_its_own_words(backend: str, expected: dict[str, str]) -> None:
    assert settings(backend, "127.0.0.1", {}) == expected


def test_what_a_person_has_set_stays_and_the_address_is_not_even_looked_up() -> None:
    theirs = {"NCCL_SOCKET_IFNAME": "bond", "TORCH_NCCL_BLOCKING_WAIT": "0"}
    assert settings("nccl", "203.0.113.9", theirs) == {}


def test_the_environment_is_as_it_was_afterwards_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCCL_SOCKET_IFNAME", raising=False)
    before = dict(os.environ)

    def connect() -> None:
        with told("hccl", "127.0.0.1"):
            raise RuntimeError(os.environ["HCCL_SOCKET_IFNAME"])

    with pytest.raises(RuntimeError, match="=lo"):
        connect()
    assert dict(os.environ) == before
