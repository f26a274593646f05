"""
A worker's `Receiver` in a thread of its own, so that decoding continues during a transfer.

    node ── Transfer, Abort, StoreValue ─▶ Channel ─▶ Receiver ─▶ staging, its own or the node's
"""

import asyncio
import contextlib
import threading

import torch

from asyncrl.actor.message import Message
from asyncrl.errors import BrokenInvariant, TransferError
from asyncrl.messages.session import StoreValue
from asyncrl.messages.weights import Abort, Transfer, TransferFailed, Transferred
from asyncrl.rollout.engines.vllm.channel import Channel, ReceiverSetup
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.receive import OnBucket, Receiver
from asyncrl.weights.shared import shared_staging


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
        self._channel: Channel | None = None
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
        self._channel = channel = Channel(*await asyncio.open_unix_connection(self._path))
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
