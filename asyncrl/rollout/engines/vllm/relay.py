"""
The node's side of a transfer that its engine's workers receive.

    broker ◀── link ──▶ node ◀── one `WorkerChannel` each ──▶ workers

A version is received by one worker, into memory that all workers map if there are several; a single bucket, by every
worker, each a rank of the transfer. The node forwards their rendezvous messages to the broker, and its answers to them.
"""

import asyncio
import contextlib
import struct
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from msgspec import Struct

from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Send
from asyncrl.errors import BrokenInvariant, EngineDied, EngineError, TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, TransferFailed, Transferred
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.publish import OnBucket, Receiver
from asyncrl.weights.shared import shared_path, shared_staging

# ── channel ───────────────────────────────────────────────────────────────────────────────────
# Messages between a node and its engine's workers, over a Unix socket: four bytes of length, then msgpack.
#
#     node ── Transfer, Abort, StoreValue ─▶ worker
#       ▲── StoreSet, StoreGet, Transferred, TransferFailed ──┘
#
# The messages are those of the broker's link, so a worker receives with an ordinary `Receiver`.

LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Transfer | Abort | StoreValue | StoreSet | StoreGet | Transferred | TransferFailed)


class ReceiverSetup(Struct, frozen=True, kw_only=True):
    """All a worker needs to receive weights. Sent as JSON through vLLM's RPC."""

    socket_path: str
    member: Member
    """The node, as `Transfer.members` names it."""
    specs: list[TensorSpec]
    weights: Weights
    interface: str
    """Address of this machine on which the worker connects to the trainer."""
    staging_path: str = ""
    """Memory of the node to receive into, see `asyncrl.weights.shared.shared_path`; empty takes the worker's own."""


class WorkerChannel:
    """One end of the socket. Iterating gives the other end's messages until it disconnects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: Message) -> None:
        """Send a message. Raises `ConnectionError` if the other end has disconnected."""
        self.post(message)
        await self._writer.drain()

    def post(self, message: Message) -> None:
        """Send a small message without waiting for room in the socket's buffer."""
        content = _encoder.encode(message)
        self._writer.write(LENGTH.pack(len(content)) + content)

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                yield _decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._writer.close()


# ── relay ─────────────────────────────────────────────────────────────────────────────────────

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.weights.staging import Staging

CONNECT_S = 30.0
"""Seconds for the workers to connect; an engine connects after the current step."""
GRACE_S = 5.0
"""Seconds to wait beyond a transfer's deadline, at which the workers give up themselves."""

CallWorkers = Callable[[str, str], Awaitable[object]]
"""Calls a method of every worker's `WorkerExtension` with one argument."""
GetCause = Callable[[], Awaitable[EngineDied]]
"""Gives the error, with its cause, of an engine that has died."""


class WorkersReceiver:
    """
    A `WeightReceiver` for an engine whose workers hold the model. Created by `connect`.

    Args:
        staging: Memory of this process that the workers receive into; None if they have their own.
    """

    def __init__(
        self, channels: list[WorkerChannel], send: Send, get_cause: GetCause, staging: "Staging | None" = None
    ) -> None:
        self._channels = channels
        self._staging = staging
        self._is_complete = False
        """True while the memory holds a version."""
        self._send = send
        self._get_cause = get_cause
        self._answers: dict[WorkerChannel, asyncio.Future[Transferred]] = {}
        """Results of the current transfer, one per worker."""
        self._transfer_group = -1
        """Group of the current transfer; late answers of earlier ones are ignored."""
        self._tasks = [asyncio.create_task(self._listen(channel)) for channel in channels]

    @classmethod
    async def connect(
        cls,
        call_workers: CallWorkers,
        specs: list[TensorSpec],
        member: Member,
        send: Send,
        weights: Weights,
        *,
        interface: str,
        get_cause: GetCause,
        staging: "Staging | None" = None,
    ) -> "WorkersReceiver":
        """
        Have the first ``member.ranks`` workers connect to this node.

        Raises `EngineError` if one does not within `CONNECT_S`. ``staging`` is as for the constructor, and needs a
        single rank.
        """
        connected: asyncio.Queue[WorkerChannel] = asyncio.Queue()
        with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:  # Only this user may enter it.
            path = str(Path(folder, "weights"))
            server = await asyncio.start_unix_server(lambda *ends: connected.put_nowait(WorkerChannel(*ends)), path)
            setup = ReceiverSetup(
                socket_path=path,
                member=member,
                specs=specs,
                weights=weights,
                interface=interface,
                staging_path=shared_path(staging) if staging else "",
            )
            try:
                async with asyncio.timeout(CONNECT_S):
                    await call_workers("asyncrl_connect", msgspec.json.encode(setup).decode())
                    channels = [await connected.get() for _ in range(member.ranks)]
            except TimeoutError:
                raise EngineError(
                    f"the engine's {member.ranks} workers did not connect within {CONNECT_S:g} s", retryable=False
                ) from None
            finally:
                server.close()
        return cls(channels, send, get_cause, staging)

    async def transfer(self, transfer: Transfer) -> float:
        """See `WeightReceiver.transfer`. Errors name the worker; the time is that of the slowest one."""
        loop = asyncio.get_running_loop()
        self._answers = {channel: loop.create_future() for channel in self._channels}
        self._transfer_group, self._is_complete = transfer.transfer_group, False
        for channel, task in zip(self._channels, self._tasks, strict=True):
            if task.done():
                raise await self._died(channel)
            with contextlib.suppress(ConnectionError):  # The worker is disconnecting: `_listen` answers for it.
                await channel.send(transfer)
        limit_s = transfer.deadline_s + GRACE_S
        done, late = await asyncio.wait(self._answers.values(), timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        seconds = [answer.result().seconds for answer in done]
        for channel, answer in self._answers.items():
            if answer in late:
                raise TransferError(
                    f"{self._name(channel)} does not answer: transfer of version {transfer.policy_version} "
                    f"had {transfer.deadline_s:g} s"
                )
        self._is_complete = True
        return max(seconds)

    def weights(self) -> "Mapping[str, Tensor]":
        """See `WeightReceiver.weights`. Raises `TransferError` if this process holds an incomplete version."""
        if self._staging and not self._is_complete:
            raise TransferError("no complete policy version is staged; a transfer must succeed first")
        return self._staging.tensors if self._staging else {}

    def deliver(self, value: StoreValue) -> None:
        for channel in self._channels:
            channel.post(value)

    def abort(self, abort: Abort) -> None:
        for channel in self._channels:
            channel.post(abort)

    async def aclose(self) -> None:
        """Disconnect and free the memory; the workers abandon a transfer in progress. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            channel.close()
        self._answers, self._staging = {}, None  # An error among the answers refers to this object.

    async def _listen(self, channel: WorkerChannel) -> None:
        async for message in channel:
            await self._handle(channel, message)
        if channel in self._answers:
            self._answer(channel, await self._died(channel))

    async def _handle(self, channel: WorkerChannel, message: Message) -> None:
        match message:
            case StoreSet() | StoreGet():
                await self._send(message)
            case Transferred(transfer_group=self._transfer_group):
                self._answer(channel, message)
            case TransferFailed(transfer_group=self._transfer_group, reason=reason):
                self._answer(channel, TransferError(f"{self._name(channel)}: {reason}"))

    async def _died(self, channel: WorkerChannel) -> EngineDied:
        return EngineDied(f"{self._name(channel)} is gone: {await self._get_cause()}")

    def _answer(self, channel: WorkerChannel, result: Transferred | TransferError | EngineDied) -> None:
        answer = self._answers.get(channel)
        if answer is None or answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
            answer.exception()  # Mark it as retrieved: only the first worker's error is raised.
        else:
            answer.set_result(result)

    def _name(self, channel: WorkerChannel) -> str:
        return f"worker {self._channels.index(channel)} of the engine"


# ── receiving ─────────────────────────────────────────────────────────────────────────────────
# A worker's `Receiver` in a thread of its own, so that decoding continues during a transfer.
#
#     node ── Transfer, Abort, StoreValue ─▶ Channel ─▶ Receiver ─▶ staging, its own or the node's


class ReceiverThread(threading.Thread):
    """
    Thread with an event loop and a `Receiver`. Ends when the node disconnects.

    Args:
        device: Device into which the backend receives.
        beside: Device of the worker's model.
    """

    def __init__(
        self,
        setup: ReceiverSetup,
        *,
        local_rank: int,
        device: torch.device,
        beside: torch.device,
        on_bucket: OnBucket | None = None,
    ) -> None:
        super().__init__(name="asyncrl-receive", daemon=True)
        self._path = setup.socket_path
        self._channel: WorkerChannel | None = None
        layout = Layout(setup.specs, setup.weights.bucket_bytes)
        self.receiver = Receiver(
            layout,
            setup.member,
            self._send,
            setup.weights,
            interface=setup.interface,
            device=device,
            beside=beside,
            local_rank=local_rank,
            on_bucket=on_bucket,
            staging=shared_staging(layout, setup.staging_path) if setup.staging_path else None,
        )

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._channel = channel = WorkerChannel(*await asyncio.open_unix_connection(self._path))
        try:
            async with asyncio.TaskGroup() as tasks:
                async for message in channel:
                    match message:
                        case Transfer():
                            tasks.create_task(self._transfer(message))
                        case StoreValue():
                            self.receiver.deliver(message)
                        case Abort():
                            self.receiver.abort(message)
        finally:
            channel.close()
            await self.receiver.aclose()

    async def _transfer(self, transfer: Transfer) -> None:
        transfer_group, version = transfer.transfer_group, transfer.policy_version
        answer: Transferred | TransferFailed
        try:
            answer = Transferred(transfer_group, version, await self.receiver.transfer(transfer), 0)
        except TransferError as error:
            answer = TransferFailed(transfer_group, version, str(error))
        except Exception as error:  # noqa: BLE001  vLLM's loader may raise anything, and the node needs an answer
            answer = TransferFailed(transfer_group, version, f"{type(error).__name__}: {error}")
        with contextlib.suppress(ConnectionError):  # The node has disconnected, to begin another session.
            await self._send(answer)

    async def _send(self, message: Message) -> None:
        if self._channel is None:
            raise BrokenInvariant("a transfer began before the worker was connected")
        await self._channel.send(message)
