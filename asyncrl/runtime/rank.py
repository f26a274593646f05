"""``python -m asyncrl.runtime.rank``: a further rank of a trainer; only a trainer's node starts it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from asyncrl.config.config import from_json
from asyncrl.errors import RankDied
from asyncrl.failpoints import failpoint
from asyncrl.files.access import restrict_umask
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.model_files import require_same_models, with_copies
from asyncrl.runtime.process import exit_unless_cancelled, run_process
from asyncrl.runtime.ranks import START_S, RankPlace, end_waits, form_group
from asyncrl.runtime.sessions import load_with_beats, serve
from asyncrl.runtime.trainer import load_learner
from asyncrl.runtime.trainer_machines import checkpoint_folder
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.rank_actor import RankActor
from asyncrl.trainer.ranks.rank_hub import rank_store
from asyncrl.trainer.ranks.ranks import RankGroup
from asyncrl.weights.groups.store import LinkStore
from asyncrl.wire.handshake import Identity, identity, join, spool_links
from asyncrl.wire.run_address import RunAddress, configured_key
from asyncrl.wire.zmq_link import ZmqLink


async def run_rank(
    first_rank: RunAddress, run: RunAddress, who: Identity, place: RankPlace, stopping: asyncio.Event
) -> None:
    """
    Follow the first rank until it sends Stop.

    Args:
        first_rank: Address of the first rank's hub, and the group's secret.
        run: Address of the broker, and the credentials for the spools.
        place: Of this rank.

    Raises:
        RankDied: Another rank is gone.
        LinkError, ConfigError: The rank could not start.
    """
    link, welcome = await join(first_rank, who, START_S)
    config = with_copies(from_json(welcome.config), place.copies)
    restrict_umask(group_reads=config.run.share_with_group)
    groups: list[RankGroup] = []
    names = [f"rank {rank}" for rank in range(place.size)]
    meeting = ZmqLink(first_rank.broker, f"{who.peer}.store", CODEC, keys=first_rank.keys(), is_there=True)
    timeout_s = config.trainer.collective_timeout_s
    async with rank_store(meeting, names, timeout_s) as store, _ended_by(stopping, store, groups):

        def form() -> RankGroup:
            groups.append(form_group(config.trainer, store, place))
            failpoint("shard.loading")
            return groups[-1]

        def load() -> Learner:
            require_same_models(welcome)
            folder, is_reader = checkpoint_folder(welcome), place.local_rank == 0
            return load_learner(config, folder, form, welcome.run_id, is_reader=is_reader)[0]

        learner = await load_with_beats(link, welcome.beat_s, load)
        try:
            actor = RankActor(
                learner,
                place.rank,
                config,
                link,
                spool_links(welcome.spools, who, run),
                checkpoints=checkpoint_folder(welcome),
                device=groups[-1].device,
                on_failure=lambda error: _end_waits(store, groups, f"this rank failed: {error}"),
            )
            await serve(actor, link, beat_s=welcome.beat_s, stopping=stopping)
        finally:
            for group in groups:
                group.close()


@asynccontextmanager
async def _ended_by(stopping: asyncio.Event, store: LinkStore, groups: list[RankGroup]) -> AsyncIterator[None]:
    """End the waits for other ranks when ``stopping`` is set: an orphan would stay in a collective."""

    async def end() -> None:
        await stopping.wait()
        _end_waits(store, groups, "this rank was told to stop")

    ending = asyncio.create_task(end())
    try:
        yield
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)


def _end_waits(store: LinkStore, groups: list[RankGroup], reason: str) -> None:
    """End all waits of this rank, which leaves; and the process, if a library waits all the same."""
    exit_unless_cancelled(RankDied(reason))
    end_waits(store, groups[-1] if groups else None, reason)


def main(address: str, name: str, place: str) -> int:
    rank_place = msgspec.json.decode(place, type=RankPlace)

    async def job(stopping: asyncio.Event) -> None:
        first_rank = RunAddress(address, Path(rank_place.secret_file) if rank_place.secret_file else None)
        run = RunAddress(rank_place.broker, configured_key(os.environ))
        await run_rank(first_rank, run, identity("shard", name), rank_place, stopping)

    return run_process(job, name=name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
