"""A node's way into a run: its handshake with the broker, its links and heartbeats, and why no broker answers."""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import ConfigError, LinkError, LinkRefused, UnknownKey, WrongHub
from asyncrl.log import get_logger
from asyncrl.messages.session import Beat, Bye, Hello, Reject, Welcome
from asyncrl.messages.spool import SpoolAddress, SpoolSet
from asyncrl.messages.wire import CODEC, PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.wire.addresses import host_of, port_of
from asyncrl.wire.curve import LinkKeys, needs_keys
from asyncrl.wire.link import Link
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.spools import SpoolLinks, hosted_spool
from asyncrl.wire.zmq_link import ZmqLink

# ── silence ───────────────────────────────────────────────────────────────────────────────────
# Reason why no broker answers at an address: one look-up and one connection with a short deadline.

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


# ── handshake ─────────────────────────────────────────────────────────────────────────────────

log = get_logger()

PROCESS = secrets.token_hex(4)
"""With the process id, unique among the processes of all machines."""
ASK_S = 1.0
"""Seconds between questions to a broker that took the Hello and has not answered it."""
FIRST_WARNING_S, LONGEST_PAUSE_S = 5.0, 600.0
"""Seconds until the first warning that the broker does not answer, and the most between two of them."""


class Identity(Struct, frozen=True):
    """Role and name of a node, with a string that is unique for this start of it."""

    role: Role
    node: str
    incarnation: str

    @property
    def peer(self) -> str:
        """Name of this node at a hub."""
        return f"{self.node}.{self.incarnation}"


def identity(role: Role, node: str) -> Identity:
    """Identity for a new start of ``node``; no two starts share one, even within a clock tick. See `Hello.process`."""
    return Identity(role, node, f"{time.time_ns():x}-{PROCESS}-{os.getpid()}")


def hello(who: Identity) -> Hello:
    """`Hello` of a node that continues nothing from an earlier session."""
    return Hello(PROTOCOL, who.role, who.node, who.incarnation, host=socket.gethostname())


def only_asking(who: Identity) -> Hello:
    """`Hello` of a session that joins nothing, and wants to know the configuration."""
    return replace(hello(who), only_asks=True)


async def join(
    run: RunAddress, who: Identity, deadline_s: float | None, make_hello: Callable[[Identity], Hello] = hello
) -> tuple[ZmqLink, Welcome]:
    """
    Connect to the broker and shake hands; warn while it does not answer. `Welcome.spool` is an address to connect to.

    Args:
        deadline_s: Seconds to wait for its answer; None waits until it comes.

    Raises:
        LinkError: There is no answer within ``deadline_s``, or the address is malformed.
        LinkReset: The broker took the Hello, and ended before it answered; join again.
        LinkRefused: The broker rejected the node or its key, or is another one; the message is the reason.
        ConfigError: The credentials cannot be read.
    """
    async with contextlib.AsyncExitStack() as unless_welcome:
        link = ZmqLink(run.broker, who.peer, CODEC, keys=run.keys())
        unless_welcome.push_async_callback(link.aclose)
        waiting = [asyncio.create_task(task) for task in (_warn(run.broker, who), _ask(link))]
        try:
            async with asyncio.timeout(deadline_s):
                welcome = await shake_hands(link, who, make_hello)
        except TimeoutError:
            cause = await why_silent(run.broker)
            raise LinkError(f"no broker answered at {run.broker} within {deadline_s:g} s: {cause}") from None
        except WrongHub:
            raise WrongHub(_wrong_hub(run)) from None
        except UnknownKey:
            raise UnknownKey(unknown_key(run)) from None
        finally:
            for task in waiting:
                task.cancel()
        unless_welcome.pop_all()
    return link, welcome


def unknown_key(run: RunAddress) -> str:
    """Sentence for a broker that refuses this node's key."""
    try:
        found = run.credentials()
    except ConfigError as error:  # The file was removed too.
        return f"the broker at {run.broker} does not accept this node's key: it was revoked, or never added; {error}"
    if found is None or not found.name:
        return (
            f"the broker at {run.broker} has keys of its own and does not accept the secret in {run.credentials_file}: "
            f"give --key a key made by `asyncrl keys add NAME --role ROLE` on its machine"
        )
    public = found.keys.public.hex()
    return (
        f"the broker at {run.broker} does not accept the key {found.name} ({public[:16]}) in {run.credentials_file}: "
        f"it was revoked, or never added; on the broker's machine, `asyncrl keys list` shows which keys it accepts, "
        f"and `asyncrl keys add` makes another one"
    )


def _wrong_hub(run: RunAddress) -> str:
    found = run.credentials()
    if found and found.name:
        return (
            f"the broker at {run.broker} does not have the public key {found.keys.hub.hex()[:16]} that "
            f"{run.credentials_file} names: it serves another run, it is no broker, or its own key was rotated; copy "
            f"the key file of {found.name} from the broker's machine again"
        )
    return (
        f"the broker at {run.broker} does not share the secret in {run.credentials_file}: it serves another run, it is "
        f"no broker, or it accepts keys only; give the secret file of its run directory, or --key a key made by "
        f"`asyncrl keys add` on its machine"
    )


async def _warn(address: str, who: Identity) -> None:
    """Log that the broker has not answered yet, and what a connection to it finds, at doubling intervals."""
    pause_s, waited_s = FIRST_WARNING_S, 0.0
    while True:
        await asyncio.sleep(pause_s)
        waited_s += pause_s
        cause = await why_silent(address)
        log.warning("broker.awaited", node=who.node, address=address, waited_s=round(waited_s, 1), cause=cause)
        pause_s = min(waited_s, LONGEST_PAUSE_S)


async def _ask(link: ZmqLink) -> None:
    """
    Keep sending something while an answer is due.

    A broker that has ended forgot the Hello that it took. The next one does not know the session, and answers whatever
    comes with a reset.
    """
    with contextlib.suppress(LinkError):
        while True:
            await asyncio.sleep(ASK_S)
            if link.is_acknowledged:
                await link.send(Beat())


async def shake_hands(link: Link, who: Identity, make_hello: Callable[[Identity], Hello] = hello) -> Welcome:
    """
    Send `Hello` on a new link and wait for `Welcome`.

    Raises:
        LinkRefused: The broker rejected the node; the message is its reason.
    """
    await link.send(make_hello(who))
    while True:
        match await link.receive():
            case Welcome() as welcome:
                return welcome
            case Reject(reason=reason):
                raise LinkRefused(reason)


def spool_links(spools: SpoolSet, who: Identity, run: RunAddress) -> SpoolLinks:
    """Links to the spools, on sockets of their own, so that control messages do not wait behind payloads."""
    return SpoolLinks(spool_connector(who, run.keys()), spools, via=run.broker)


def weights_links(spools: SpoolSet, who: Identity, run: RunAddress) -> Callable[[], ZmqLink]:
    """
    Function that opens links to the broker's own spool for weights alone, so that trajectories do not wait behind them.

    Raises:
        ConfigError: The broker hosts no spool.
    """
    connect = hosted_links(spools, who, run, ".weights")

    def open_link() -> ZmqLink:
        if connect is None:
            raise ConfigError(
                f"{who.node} fetches weights from the spool in the broker's process, but broker.spool is false: set it "
                f"to true, or use --weights collective"
            )
        return connect()

    return open_link


def hosted_links(spools: SpoolSet, who: Identity, run: RunAddress, purpose: str) -> Callable[[], ZmqLink] | None:
    """Function that opens links to the spool in the broker's process, for one purpose; None if there is none."""
    own = hosted_spool(spools, run.broker)
    return partial(spool_connector(who, run.keys(), purpose), own) if own else None


def spool_connector(who: Identity, keys: LinkKeys | None, purpose: str = "") -> Callable[[SpoolAddress], ZmqLink]:
    """
    Function that opens a link to a spool, each time under another name: the spool may still know the last one.

    ``purpose`` tells several connectors of one node apart.
    """
    numbers = count(1)

    def connect(spool: SpoolAddress) -> ZmqLink:
        known = replace(keys, hub=spool.key) if keys and spool.key else keys
        needed = known if needs_keys(spool.address) else None
        return ZmqLink(spool.address, f"{who.peer}{purpose}.{next(numbers)}", CODEC, keys=needed, is_there=True)

    return connect


async def send_beats(
    link: Link,
    interval_s: float,
    make_beat: Callable[[float], Beat],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """
    Send a heartbeat every ``interval_s`` seconds from the node's own event loop, so that a blocked loop looks dead.

    Args:
        make_beat: Given the delay of the loop in seconds.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + interval_s
        await sleep(interval_s)
        await link.send(make_beat(max(loop.time() - due_s, 0.0)))


async def leave(link: Link, reason: str) -> None:
    """Send `Bye` and close the link; a broker that is gone is no error."""
    try:
        async with asyncio.timeout(1.0):
            await link.send(Bye(reason))
    except (LinkError, TimeoutError):
        pass
    finally:
        await link.aclose()


# ── connection ────────────────────────────────────────────────────────────────────────────────
# The links of a node that was welcomed to a run.


class Connection(Struct, frozen=True, eq=False):
    """A node's place in a run: its identity and its links. Whoever made the link to the broker closes it."""

    identity: Identity
    broker: Link
    """Control messages; small, never behind bulk data."""
    spools: SpoolLinks
    """Payloads: trajectories to and from the spools. The actor runs it."""
