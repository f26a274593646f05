"""
The node's end of a transfer that its engine's workers receive.

    broker ◀── link ──▶ node ◀── one `Channel` each ──▶ workers

Every worker is a rank of its own. What they say to find each other goes on to the broker, what it answers goes to all.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.config.sections import Weights
from asyncrl.errors import EngineDied, EngineError, TransferError
from asyncrl.messages import Member, Message, StoreGet, StoreSet, StoreValue, Transfer, TransferFailed, Transferred
from asyncrl.rollout.engine import Send
from asyncrl.rollout.engines.vllm.channel import Channel, Invitation
from asyncrl.weights.contents.layout import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

CONNECT_S = 30.0
"""For the workers to connect; an engine in the middle of a long step takes a moment."""
GRACE_S = 5.0
"""Beyond the deadline of a transfer, by which workers give up by themselves."""

Call = Callable[[str, str], Awaitable[object]]
"""Calls a method of every worker's `WorkerExtension`, with one argument."""
Death = Callable[[], Awaitable[EngineDied]]
"""How the engine ended, once a worker of it has."""


class WorkersReceiver:
    """
    `Receives` for an engine whose workers hold the model. Made by `connect`.

    Args:
        channels: To each worker.
        send: `Link.send` of the link to the broker.
        death: Asked when a worker is gone, for the cause.
    """

    def __init__(self, channels: list[Channel], send: Send, death: Death) -> None:
        self._channels = channels
        self._send = send
        self._death = death
        self._answers: dict[Channel, asyncio.Future[Transferred]] = {}
        """What the workers make of the transfer under way."""
        self._tasks = [asyncio.create_task(self._listen(channel)) for channel in channels]

    @classmethod
    async def connect(
        cls, call: Call, specs: list[TensorSpec], member: Member, send: Send, weights: Weights, *, death: Death
    ) -> "WorkersReceiver":
        """
        Have the workers connect to this node.

        Raises:
            EngineError: They did not within `CONNECT_S`.
        """
        arrived: asyncio.Queue[Channel] = asyncio.Queue()
        with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:  # Nobody else may enter it.
            path = str(Path(folder, "weights"))
            server = await asyncio.start_unix_server(lambda *ends: arrived.put_nowait(Channel(*ends)), path)
            invitation = Invitation(path=path, member=member, specs=specs, weights=weights)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await call("asyncrl_connect", msgspec.json.encode(invitation).decode())
                    channels = [await arrived.get() for _ in range(member.ranks)]
            except TimeoutError:
                raise EngineError(
                    f"the engine's {member.ranks} workers did not connect within {CONNECT_S:g} s", retryable=False
                ) from None
            finally:
                server.close()
        return cls(channels, send, death)

    async def transfer(self, transfer: Transfer) -> float:
        """
        Have every worker receive a version into its staging.

        Returns:
            Seconds that the slowest took.

        Raises:
            TransferError: One of them did not; names it.
            EngineDied: One of them is gone, and the engine with it.
        """
        loop = asyncio.get_running_loop()
        self._answers = {channel: loop.create_future() for channel in self._channels}
        for channel, task in zip(self._channels, self._tasks, strict=True):
            if task.done():
                raise await self._gone(channel)
            with contextlib.suppress(ConnectionError):  # It is just leaving: whoever listens to it says so.
                await channel.send(transfer)
        limit_s = transfer.deadline_s + GRACE_S
        done, late = await asyncio.wait(self._answers.values(), timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        seconds = [answer.result().seconds for answer in done]
        for channel, answer in self._answers.items():
            if answer in late:
                raise TransferError(
                    f"{self._whose(channel)} does not answer: transfer of policy_version {transfer.policy_version} "
                    f"had {transfer.deadline_s:g} s"
                )
        return max(seconds)

    def weights(self) -> "Mapping[str, Tensor]":
        """Nothing: they lie in the workers."""
        return {}

    def deliver(self, value: StoreValue) -> None:
        """Hand the broker's answer to the workers."""
        for channel in self._channels:
            channel.post(value)

    async def aclose(self) -> None:
        """Hang up; the workers give up what they have begun. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            channel.close()

    async def _listen(self, channel: Channel) -> None:
        async for message in channel:
            await self._take(channel, message)
        if channel in self._answers:
            self._answer(channel, await self._gone(channel))

    async def _take(self, channel: Channel, message: Message) -> None:
        match message:
            case StoreSet() | StoreGet():
                await self._send(message)
            case Transferred():
                self._answer(channel, message)
            case TransferFailed(reason=reason):
                self._answer(channel, TransferError(f"{self._whose(channel)}: {reason}"))

    async def _gone(self, channel: Channel) -> EngineDied:
        return EngineDied(f"{self._whose(channel)} is gone: {await self._death()}")

    def _answer(self, channel: Channel, result: Transferred | TransferError | EngineDied) -> None:
        answer = self._answers.get(channel)
        if answer is None or answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
            answer.exception()  # One worker's reason is enough; nobody may ask for the others'.
        else:
            answer.set_result(result)

    def _whose(self, channel: Channel) -> str:
        return f"worker {self._channels.index(channel)} of the engine"
