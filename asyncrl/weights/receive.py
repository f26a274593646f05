"""
A rollout's side of a transfer.

    trainer ── transfer ─▶ staging buffers ── weights ─▶ engine.swap
                decoding goes on ────────────▶ pause ─▶ resume

    trainer ── transfer ─▶ one bucket ── on_bucket ─▶ engine, bucket after bucket        for models too big to stage
                decoding has been stopped
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from asyncrl.config.sections import Weights
from asyncrl.errors import ConfigError, TransferError
from asyncrl.messages import Member, StoreValue, Transfer
from asyncrl.weights.contents import header
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.header import NOTHING
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import Channel, OnBucket, receive
from asyncrl.weights.groups.deadline import Deadline
from asyncrl.weights.groups.group import CPU, Group
from asyncrl.weights.groups.group_keeper import GroupKeeper
from asyncrl.weights.groups.store import Send
from asyncrl.weights.staging import Staging


class Receiver:
    """
    Holds the newest version that arrived whole, until the engine takes it.

    With ``weights.staging = "bucket"`` it holds a single bucket, and the engine takes each as it comes. A transfer that
    breaks then has replaced some of the engine's weights, and perhaps with damaged ones: the engine is of no use until
    a later transfer succeeds, and must not decode during one.

    Args:
        plan: What moves. The trainer must have an equal one.
        member: Who we are.
        send: `Link.send` of the link to the broker.
        config: Backend, interface, and how to stage.
        device: Where the buffers lie: what the backend can receive into.
        local_rank: Which of the member's processes this is.
        on_bucket: With ``staging = "bucket"``, and only then: takes the tensors of a bucket, views into the buffer.
            Called for every bucket in the plan's order, on the thread that receives. When it returns it must be done
            with them, on the device too.

    Raises:
        ConfigError: ``on_bucket`` and ``weights.staging`` do not go together.
    """

    def __init__(
        self,
        plan: Layout,
        member: Member,
        send: Send,
        config: Weights,
        *,
        device: torch.device = CPU,
        local_rank: int = 0,
        on_bucket: OnBucket | None = None,
    ) -> None:
        if (config.staging == "bucket") != (on_bucket is not None):
            raise ConfigError(
                f"weights.staging is {config.staging!r}, but the engine takes "
                f"{'single buckets' if on_bucket else 'whole versions'}"
            )
        self._keeper = GroupKeeper(
            member, send, backend=config.backend, interface=config.interface, local_rank=local_rank, device=device
        )  # first of all: it makes the device usable
        self._plan = plan
        self._device = device
        self._staging = Staging(plan, device, holds=config.staging)
        self._is_whole = on_bucket is None
        self._on_bucket = on_bucket or _stay
        self._checksum = Checksum(device)
        self.policy_version: int | None = None
        """What arrived whole last; None before the first transfer, during one, and after a broken one."""

    async def transfer(self, transfer: Transfer) -> float:
        """
        Receive a version into the staging buffers, over the one that was there.

        Returns:
            Seconds from the call to the last byte.

        Raises:
            TransferError: It did not arrive whole and undamaged by the deadline. The epoch is dead then.
        """
        rank = self._keeper.rank(transfer)
        if rank == 0:
            raise TransferError(
                f"epoch {transfer.transfer_group} lists a receiver at rank 0, where the trainer belongs"
            )
        seconds = await self._keeper.run(transfer, rank, partial(self._receive, transfer.policy_version))
        self.policy_version = transfer.policy_version
        return seconds

    def weights(self) -> dict[str, Tensor]:
        """
        Views into the staging buffers, by name: borrowed until the next `transfer` begins, and not to be written to.

        Empty if the engine took the buckets as they came.

        Raises:
            TransferError: There is no complete version.
        """
        if self.policy_version is None:
            raise TransferError("no complete policy version is staged; a transfer must succeed first")
        return self._staging.tensors if self._is_whole else {}

    def deliver(self, value: StoreValue) -> None:
        """Hand in every `StoreValue` the broker sends."""
        self._keeper.deliver(value)

    async def aclose(self) -> None:
        """End the groups and the thread. A transfer that is moving ends first, by its deadline. Idempotent."""
        await self._keeper.aclose()

    def _receive(self, policy_version: int, group: Group, deadline: Deadline) -> None:
        channel = Channel(group, deadline)
        received = header.blank(self._device)
        channel.move(received)
        announced = header.decode(received)
        announced.check(policy_version, self._plan)
        is_delta = announced.base_version != NOTHING
        if is_delta:
            self._check_base(announced.base_version)
        self.policy_version = None
        receive(
            channel,
            self._plan,
            self._staging,
            is_delta=is_delta,
            checksum=self._checksum if announced.is_checked else None,
            on_bucket=self._on_bucket,
        )

    def _check_base(self, base_version: int) -> None:
        if not self._is_whole or self.policy_version != base_version:
            held = f"policy_version {self.policy_version}" if self._is_whole else "a single bucket"
            raise TransferError(
                f"the sender sends what changed since policy_version {base_version}, but {held} is staged here: it has "
                f"to send everything"
            )


def _stay(_: Mapping[str, Tensor]) -> None:
    """The bucket has its own buffer, and stays there."""
