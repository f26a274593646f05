"""Reason why no broker answers at an address: one look-up and one connection with a short deadline."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from asyncrl.config.addresses import host_of, port_of

LOOK_S = 2.0
"""Seconds for both."""
OVER = "the broker does not run, the run is over, or the address is wrong"


async def connect(address: str) -> None:
    """Connect to an address and close the connection. Raises `OSError` if that fails."""
    if address.startswith("ipc://"):
        _, writer = await asyncio.open_unix_connection(address.removeprefix("ipc://"))
        writer.close()
    else:  # A thread: asyncio joins the errors of a host's addresses to one without a number.
        host = host_of(address), port_of(address)
        (await asyncio.to_thread(socket.create_connection, host, LOOK_S)).close()


async def why_silent(address: str, connect: Callable[[str], Awaitable[None]] = connect, look_s: float = LOOK_S) -> str:
    """Finding of a connection to ``address``, as the end of a sentence on a broker that gave no answer there."""
    place = host_of(address) or "it"
    try:
        async with asyncio.timeout(look_s):
            await connect(address)
    except socket.gaierror:
        return f"{place} is not a known host"
    except (ConnectionRefusedError, FileNotFoundError):
        return f"nothing listens there: {OVER}"
    except TimeoutError:
        return f"{place} does not answer: it is down, the address is wrong, or a firewall drops the connection"
    except OSError as error:
        return f"{place} cannot be reached: {error.strerror or error}"
    return "something listens there and gives no answer: it is no broker, it is busy, or it hangs"
