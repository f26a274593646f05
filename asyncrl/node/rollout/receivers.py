"""
The receiver of new weights in each session of a rollout, by the way that weights reach its machine.

    collective ─▶ member of the trainer's group: staging memory of this process, or the engine's own processes
    spool      ─▶ downloads from spools, into memory that outlives the session: nothing is fetched twice
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from asyncrl.actor.link import Link
from asyncrl.client.handshake import Identity, weights_links
from asyncrl.client.run_address import RunAddress
from asyncrl.config.sections.weights import Weights
from asyncrl.messages.session import Welcome
from asyncrl.messages.weights import Member
from asyncrl.messages.words import WeightsVia
from asyncrl.node.machine.local_address import local_address
from asyncrl.rollout.engine import Engine, MultiProcessEngine, WeightReceiver
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.groups.group import CPU
from asyncrl.weights.receive import Receiver

if TYPE_CHECKING:
    from asyncrl.weights.stored.staged import StagedVersion


class Receivers:
    """Makes one receiver for each session. ``close`` frees what outlives them."""

    def __init__(self, engine: Engine, run: RunAddress, via: WeightsVia) -> None:
        self.via = via
        self._engine = engine
        self._run = run
        self._staged: StagedVersion | None = None

    async def open(
        self, layout: Layout, weights: Weights, *, who: Identity, link: Link, welcome: Welcome
    ) -> WeightReceiver:
        """A receiver, which the session closes."""
        if self.via == "spool":
            return self._downloader(layout, welcome, who)
        engine, member = self._engine, Member(who.node, who.incarnation, receiving_ranks(self._engine, weights))
        interface = await _interface(self._run, weights)
        if isinstance(engine, MultiProcessEngine):
            return await engine.receiver(member, link.send, weights, interface=interface)
        own = getattr(engine, "device", CPU)
        device = staging_device(weights.backend, own)
        return Receiver(layout, member, link.send, weights, interface=interface, device=device, beside=own)

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()
            self._staged = None

    def _downloader(self, layout: Layout, welcome: Welcome, who: Identity) -> WeightReceiver:
        # Here, because a rollout that takes part in the collective need not have zstandard.
        from asyncrl.weights.stored.download import Downloader  # noqa: PLC0415
        from asyncrl.weights.stored.staged import StagedVersion  # noqa: PLC0415

        if self._staged is not None and self._staged.layout.hash != layout.hash:
            self.close()
        if self._staged is None:
            self._staged = StagedVersion(layout, is_shared=isinstance(self._engine, MultiProcessEngine))
        return Downloader(self._staged, weights_links(welcome.spools, who, self._run))


def receiving_ranks(engine: Engine, weights: Weights) -> int:
    """Processes that take part in a collective transfer."""
    return engine.ranks if isinstance(engine, MultiProcessEngine) and weights.staging == "bucket" else 1


async def _interface(run: RunAddress, weights: Weights) -> str:
    """`local_address` in a thread that ends with it; the event loop's pool would keep one for the host's lifetime."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="asyncrl-address")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, local_address, run.broker, weights.interface)
    finally:
        pool.shutdown(wait=False)
