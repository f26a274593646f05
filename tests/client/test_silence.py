"""An address at which no broker answers is told by what a connection to it finds."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from asyncrl.client.silence import why_silent

ADDRESS = "tcp://gpu-7:5570"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "gpu-7 is not a known host"),
        (ConnectionRefusedError(), "nothing listens there: the broker does not run, the run is over, or the address"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "gpu-7 cannot be reached: No route to host"),
        (TimeoutError(), "gpu-7 does not answer: it is down"),
        (None, "something listens there and gives no answer"),
    ],
)
def test_each_cause_has_its_sentence(error: Exception | None, said: str) -> None:
    async def connect(address: str) -> None:
        assert address == ADDRESS
        if error is not None:
            raise error

    assert asyncio.run(why_silent(ADDRESS, connect)).startswith(said)


def test_a_connection_that_never_comes_about_is_given_up() -> None:
    async def connect(_address: str) -> None:
        await asyncio.get_running_loop().create_future()

    assert asyncio.run(why_silent(ADDRESS, connect, look_s=0.01)).startswith("gpu-7 does not answer")


def test_a_socket_is_connected_to_for_real(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    address = f"ipc://{path}"
    assert asyncio.run(why_silent(address)).startswith("nothing listens there")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert asyncio.run(why_silent(address)).startswith("nothing listens there")
        server.listen()
        assert asyncio.run(why_silent(address)).startswith("something listens there")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert asyncio.run(why_silent(f"tcp://localhost:{port}")).startswith("nothing listens there")
        server.listen()
        assert asyncio.run(why_silent(f"tcp://127.0.0.1:{port}")).startswith("something listens there")
