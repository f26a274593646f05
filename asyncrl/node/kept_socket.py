"""Unix sockets that outlive a cleaner of temporary files: whoever connects later would wait for ever."""

import asyncio
from collections.abc import Awaitable, Callable

from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.private_socket import is_gone, make_again
from asyncrl.log import get_logger

log = get_logger()

LOOK_S = 2.0
"""Seconds between two looks at a socket: the longest time that a node which connects waits for a new one."""


async def keep_socket(hub: ZmqHub, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """
    Listen again at the hub's unix socket whenever its file is gone, until cancelled. Connections are not touched.

    If another user has made the folder meanwhile, the log says so, once; the next start takes another one.
    """
    is_told = False
    while hub.address.startswith("ipc://"):
        await sleep(LOOK_S)
        if not is_gone(hub.address):
            continue
        try:
            make_again(hub.address)
            hub.listen_again()
        except (ConfigError, LinkError) as error:
            if not is_told:
                log.error("socket.lost", address=hub.address, cause=str(error))
                is_told = True
        else:
            log.warning("socket.made_again", address=hub.address)
