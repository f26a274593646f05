"""``python -m asyncrl.node.trainer.shard``: a further rank of a trainer; only the first rank starts it."""

import asyncio
import sys
from pathlib import Path

from asyncrl.client.handshake import Identity, identity, join, spool_link
from asyncrl.config.sections import from_json
from asyncrl.node.process import run_process
from asyncrl.node.runner import load_with_beats, serve
from asyncrl.node.trainer.learner import load_learner
from asyncrl.node.trainer.ranks import START_S, rank_group
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.ranks import RankGroup
from asyncrl.trainer.shard import ShardActor


async def run_shard(address: str, who: Identity, rank: int, store: Path, stopping: asyncio.Event) -> None:
    """
    Follow the first rank until it sends Stop.

    Args:
        address: Address of the first rank's hub.
        store: File for the rendezvous of the ranks.

    Raises:
        RankDied: Another rank is gone.
        LinkError, ConfigError: The rank could not start.
    """
    link, welcome = await join(address, who, START_S)
    config = from_json(welcome.config)
    groups: list[RankGroup] = []

    def form() -> RankGroup:
        groups.append(rank_group(config.trainer, store, rank=rank, is_over=stopping.is_set))
        return groups[-1]

    def load() -> Learner:
        return load_learner(config, RunDirectory(Path(welcome.run_dir)), form)[0]

    learner = await load_with_beats(link, welcome.beat_s, load)
    spool = spool_link(welcome, who)
    try:
        await serve(
            ShardActor(learner, rank, config.schedule.group_size, link, spool),
            link,
            beat_s=welcome.beat_s,
            stopping=stopping,
        )
    finally:
        await spool.aclose()
        for group in groups:
            group.close()


def main(address: str, name: str, rank: int, store: Path) -> int:
    async def job(stopping: asyncio.Event) -> None:
        await run_shard(address, identity("shard", name), rank, store, stopping)

    return run_process(job, name=name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
