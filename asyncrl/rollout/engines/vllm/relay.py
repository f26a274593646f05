"""
The node's side of a transfer that its engine's workers receive.

    broker ◀── link ──▶ node ◀── one `Channel` each ──▶ workers

A version is received by one worker, into memory that all workers map if there are several; a single bucket, by every
worker, each a rank of the transfer. The node forwards their rendezvous messages to the broker, and its answers to them.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.actor.message import Message
from asyncrl.config.sections.weights import Weights
from asyncrl.errors import EngineDied, EngineError, TransferError
from asyncrl.messages.session import StoreGet, StoreSet, StoreValue
from asyncrl.messages.weights import Abort, Member, Transfer, TransferFailed, Transferred
from asyncrl.rollout.engine import Send
from asyncrl.rollout.engines.vllm.channel import Channel, ReceiverSetup
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.shared import shared_path

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
        self, channels: list[Channel], send: Send, get_cause: GetCause, staging: "Staging | None" = None
    ) -> None:
        self._channels = channels
        self._staging = staging
        self._is_complete = False
        """True while the memory holds a version."""
        self._send = send
        self._get_cause = get_cause
        self._answers: dict[Channel, asyncio.Future[Transferred]] = {}
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
        connected: asyncio.Queue[Channel] = asyncio.Queue()
        with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:  # Only this user may enter it.
            path = str(Path(folder, "weights"))
            server = await asyncio.start_unix_server(lambda *ends: connected.put_nowait(Channel(*ends)), path)
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

    async def _listen(self, channel: Channel) -> None:
        async for message in channel:
            await self._handle(channel, message)
        if channel in self._answers:
            self._answer(channel, await self._died(channel))

    async def _handle(self, channel: Channel, message: Message) -> None:
        match message:
            case StoreSet() | StoreGet():
                await self._send(message)
            case Transferred(transfer_group=self._transfer_group):
                self._answer(channel, message)
            case TransferFailed(transfer_group=self._transfer_group, reason=reason):
                self._answer(channel, TransferError(f"{self._name(channel)}: {reason}"))

    async def _died(self, channel: Channel) -> EngineDied:
        return EngineDied(f"{self._name(channel)} is gone: {await self._get_cause()}")

    def _answer(self, channel: Channel, result: Transferred | TransferError | EngineDied) -> None:
        answer = self._answers.get(channel)
        if answer is None or answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
            answer.exception()  # Mark it as retrieved: only the first worker's error is raised.
        else:
            answer.set_result(result)

    def _name(self, channel: Channel) -> str:
        return f"worker {self._channels.index(channel)} of the engine"
