"""The first rank waits for the others on the thread that loads the model, until the wait is ended from outside."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import ConfigError, MachineLost, RankDied
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.messages.trainer import TrainerMachine
from asyncrl.runtime import ranks
from asyncrl.runtime import ranks as ranks_module
from asyncrl.runtime.rank import run_rank
from asyncrl.runtime.ranks import (
    FirstRank,
    HubAddress,
    MachinePlace,
    RankPlace,
    exit_error,
    only_machine,
    patience_s,
    with_ranks,
)
from asyncrl.runtime.sessions import NodeSession, RunNode
from asyncrl.trainer.ranks.rank_hub import OtherRanks, RankHub, rank_store
from asyncrl.trainer.ranks.ranks import Ranks, SingleRank
from asyncrl.weights.groups.store import LinkStore
from asyncrl.wire.handshake import Identity, identity
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import RunAddress
from asyncrl.workers.child import Child
from tests.runtime.refusing import refused


def scene(size: int, act: Callable[[FirstRank], None]) -> list[Ranks]:
    """Start the first of ``size`` ranks, none of which comes, and do ``act`` once it is loading."""
    formed: list[Ranks] = []

    async def main() -> None:
        hub, loading = MemoryHub(), asyncio.Event()

        async def work(*, form: Callable[[], Ranks], others: OtherRanks) -> None:
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
    monkeypatch.setattr(ranks_module, "RankGroup", lambda _, **settings: made.append(settings))
    for trainer in (Trainer(), Trainer(collective_timeout_s=7200.0)):
        ranks_module.form_group(trainer, cast(LinkStore, None), RankPlace(1, 1, 2, "127.0.0.1", "ipc://x"))
    assert [settings["timeout_s"] for settings in made] == [600.0, 7200.0]


def test_the_wait_for_ranks_that_never_come_can_be_ended() -> None:
    with pytest.raises(RankDied, match="has ended while it was formed"):
        scene(2, lambda first: first.abort("trainer-b was lost"))


# ── test place ────────────────────────────────────────────────────────────────────────────────

MACHINES = [TrainerMachine("a", "host-a"), TrainerMachine("b", "host-b")]


def test_ranks_are_numbered_over_the_machines_in_their_order() -> None:
    place = MachinePlace(MACHINES, 1, 2, "127.0.0.1")

    assert (place.size, list(place.own)) == (4, [2, 3])
    assert place.names == ["a-rank-0", "a-rank-1", "b-rank-2", "b-rank-3"]
    assert place.labels[2] == "b-rank-2 on host-b"


def test_one_machine_has_all_ranks() -> None:
    place = only_machine("t", 3, "127.0.0.1")
    assert (place.size, list(place.own), place.names[2]) == (3, [0, 1, 2], "t-rank-2")


# ── test ranks ────────────────────────────────────────────────────────────────────────────────
# A trainer of several processes fails at once when a rank dies before the group is formed, and names it.

ROOT = Path(__file__).parents[2]
CONFIG = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"ranks": 2}})
WHO, WELCOME = identity("trainer", "trainer-0"), Welcome(1, "run", to_json(CONFIG), SpoolSet(), 0.5)
JOINS_AND_DIES = """
import asyncio, os, sys
from asyncrl.wire.handshake import identity, join
from asyncrl.wire.run_address import RunAddress

async def main():
    await join(RunAddress(sys.argv[1]), identity("shard", "trainer-0-rank-1"), 30.0)
    os._exit(3)

asyncio.run(main())
"""


def session() -> NodeSession:
    node = RunNode(WHO, RunAddress("ipc://x"), wait_s=None)
    return NodeSession(node, WHO, MemoryHub().connect(WHO.peer), WELCOME)


async def load(*, form: Callable[[], Ranks], others: object) -> None:
    await asyncio.to_thread(form)


@pytest.mark.timeout(60)
def test_a_rank_that_dies_before_the_group_is_formed_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dying(
        stack: AsyncExitStack, _session: object, _place: object, hub: HubAddress, *, leave_s: float
    ) -> list[Child]:
        child = Child("trainer-0-rank-1", [sys.executable, "-c", JOINS_AND_DIES, hub.address], None, {})
        stack.push_async_callback(child.end, leave_s)
        await child.start()
        return [child]

    async def main() -> None:
        monkeypatch.setattr(ranks, "start_ranks", dying)
        with pytest.raises(RankDied, match="trainer-0-rank-1 exited with 3") as raised:
            await with_ranks(session(), load, only_machine("trainer-0", 2, "127.0.0.1"))
        assert raised.type is RankDied

    asyncio.run(main())  # ends the thread that waits for the group


@pytest.mark.slow("real processes that import torch")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("library", "code"), [("aborts", 0), ("stuck", RankDied.exit_code)])
def test_a_rank_that_is_killed_in_a_collective_is_named_and_the_node_ends(library: str, code: int) -> None:
    """A device's collective never ends by itself: its group is aborted, and if that does not help, the process ends."""
    command = [sys.executable, "-m", "tests.runtime.hung_process", library]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == code, done.stderr
    assert "trainer-0-rank-1 was killed by SIGKILL" in (done.stderr if code else done.stdout)


@pytest.mark.timeout(60)
def test_the_loss_of_another_machine_ends_the_wait_for_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object, **__: object) -> list[Child]:
        return []

    async def main() -> None:
        monkeypatch.setattr(ranks, "start_ranks", none)
        lost: asyncio.Future[MachineLost] = asyncio.get_running_loop().create_future()
        addresses = []

        async def announce(hub: HubAddress) -> None:
            addresses.append(hub.address)
            lost.set_result(MachineLost("b on host-b (rank 1) was lost: silent for 10 s"))

        place = MachinePlace([TrainerMachine("trainer-0", "host-a"), TrainerMachine("b", "host-b")], 0, 1, "127.0.0.1")
        with pytest.raises(MachineLost, match=r"b on host-b \(rank 1\) was lost"):
            await with_ranks(session(), load, place, announce=announce, lost=lost)
        assert len(addresses) == 1

    asyncio.run(main())


EXITS: list[tuple[int, type[Exception], float]] = [
    (0, RankDied, 0.0), (1, RankDied, 0.0), (78, ConfigError, 0.0), (75, RankDied, 7.0), (69, RankDied, 7.0),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind", "paused_s"), EXITS)
def test_a_rank_that_left_because_of_another_gives_that_one_time_to_be_named(
    code: int, kind: type[Exception], paused_s: float
) -> None:
    async def main() -> tuple[Exception, list[float]]:
        paused: list[float] = []

        async def sleep(seconds: float) -> None:
            paused.append(seconds)

        child = Child("r", [sys.executable, "-c", f"raise SystemExit({code})"], None, {})
        await child.start()
        return await exit_error(child, 7.0, sleep), paused

    error, paused = asyncio.run(main())
    assert type(error) is kind
    assert str(error).startswith(f"r exited with {code}")
    assert paused == ([paused_s] if paused_s else [])


def test_a_lost_machine_is_waited_for_until_the_broker_notices() -> None:
    one = only_machine("a", 2, "127.0.0.1")
    two = replace(one, machines=[*one.machines, TrainerMachine("b", "host-b")])
    assert patience_s(CONFIG, two) - patience_s(CONFIG, one) == CONFIG.broker.node_ttl_s


# ── further rank ──────────────────────────────────────────────────────────────────────────────────
# A further rank of the trainer that cannot start reports the cause to the first rank.


async def start_further(run: RunAddress, who: Identity) -> None:
    await run_rank(run, run, who, RankPlace(1, 1, 2, "127.0.0.1", "ipc://x"), asyncio.Event())


def test_a_rank_on_a_missing_device_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"device": "npu", "ranks": 2}})
    error, reason = refused(config, "shard", start_further)
    assert error == reason
    assert "npu devices need torch_npu" in error
