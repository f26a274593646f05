"""The first rank waits for the others on the thread that loads the model, until the wait is ended from outside."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import RankDied
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.node.trainer import first_rank
from asyncrl.node.trainer.first_rank import FirstRank
from asyncrl.node.trainer.place import RankPlace
from asyncrl.trainer.ranks.rank_hub import OtherRanks, RankHub
from asyncrl.trainer.ranks.rank_store import rank_store
from asyncrl.trainer.ranks.ranks import Ranks, SingleRank
from asyncrl.weights.groups.store import LinkStore


def scene(size: int, act: Callable[[FirstRank], None]) -> list[Ranks]:
    """Start the first of ``size`` ranks, none of which comes, and do ``act`` once it is loading."""
    formed: list[Ranks] = []

    async def main() -> None:
        hub, loading = MemoryHub(), asyncio.Event()

        async def work(form: Callable[[], Ranks], _: OtherRanks) -> None:
            loading.set()
            formed.append(await asyncio.to_thread(form))

        names = [f"rank-{rank}" for rank in range(1, size)]
        rank_hub = RankHub(hub, names=names, welcome=Welcome(1, "", b"", SpoolSet(), 1.0), silence_s=10.0)
        async with asyncio.timeout(20), rank_store(hub.connect("0.store"), ["0", *names], 60.0) as store:
            first = FirstRank(rank_hub, store, Trainer(), RankPlace(0, 0, size, "127.0.0.1", "ipc://x"), work)
            running = asyncio.create_task(first.run())
            await loading.wait()
            act(first)
            await running

    asyncio.run(main())
    return formed


def test_the_only_rank_forms_no_group() -> None:
    (ranks,) = scene(1, lambda _: None)
    assert isinstance(ranks, SingleRank)


def test_a_group_waits_as_long_as_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(first_rank, "RankGroup", lambda _, **settings: made.append(settings))
    for trainer in (Trainer(), Trainer(collective_timeout_s=7200.0)):
        first_rank.form_group(trainer, cast(LinkStore, None), RankPlace(1, 1, 2, "127.0.0.1", "ipc://x"))
    assert [settings["timeout_s"] for settings in made] == [600.0, 7200.0]


def test_the_wait_for_ranks_that_never_come_can_be_ended() -> None:
    with pytest.raises(RankDied, match="has ended while it was formed"):
        scene(2, lambda first: first.abort("trainer-b was lost"))
