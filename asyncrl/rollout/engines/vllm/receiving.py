"""
A worker's end of a transfer: a `Receiver` on a thread of its own, so that decoding goes on.

    node ── Transfer, StoreValue ─▶ Channel ─▶ Receiver ─▶ staging
"""

import asyncio
import contextlib
import threading

import torch

from asyncrl.errors import BrokenInvariant, TransferError
from asyncrl.messages import Message, StoreValue, Transfer, TransferFailed, Transferred
from asyncrl.rollout.engines.vllm.channel import Channel, Invitation
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import OnBucket
from asyncrl.weights.receive import Receiver


class ReceivingEnd(threading.Thread):
    """A `Receiver` with an event loop of its own. Ends when the node hangs up."""

    def __init__(
        self, invitation: Invitation, *, local_rank: int, device: torch.device, on_bucket: OnBucket | None = None
    ) -> None:
        super().__init__(name="asyncrl-receive", daemon=True)
        self._path = invitation.path
        self._channel: Channel | None = None
        self.receiver = Receiver(
            Layout(invitation.specs, invitation.weights.bucket_bytes),
            invitation.member,
            self._send,
            invitation.weights,
            device=device,
            local_rank=local_rank,
            on_bucket=on_bucket,
        )

    def run(self) -> None:
        """The thread."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._channel = channel = Channel(*await asyncio.open_unix_connection(self._path))
        try:
            async with asyncio.TaskGroup() as tasks:
                async for message in channel:
                    match message:
                        case Transfer():
                            tasks.create_task(self._transfer(message))
                        case StoreValue():
                            self.receiver.deliver(message)
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
        except Exception as error:  # noqa: BLE001  vLLM's loader may raise anything; a worker that is silent would seem dead
            answer = TransferFailed(transfer_group, version, f"{type(error).__name__}: {error}")
        with contextlib.suppress(ConnectionError):  # The node hung up meanwhile: it has begun another session.
            await self._send(answer)

    async def _send(self, message: Message) -> None:
        if self._channel is None:
            raise BrokenInvariant("a transfer began before the worker was connected")
        await self._channel.send(message)
