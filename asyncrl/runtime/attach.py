"""
Embedding API: attaches an existing process, such as an inference server, to a run as a rollout, or as a reward node.

    host = Host()
    task = asyncio.create_task(attach(engine, "tcp://127.0.0.1:5570", "server-1", slots=64, host=host))
    with host.user_request():                 # the rollout makes way
        ...
    host.health.state                         # such as "rolling_out"
    task.cancel()                             # leave the run
    await asyncio.wait([task])

The host provides an `asyncrl.engine.Engine`. `attach` opens sockets to the broker and the spools, and a thread
for weight transfers, and closes them when it ends. It installs no signal handlers and does not configure logging.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from asyncrl.engine import Engine
from asyncrl.errors import ConfigError, LinkError, VerifierError
from asyncrl.log import get_logger
from asyncrl.messages.words import WeightsVia
from asyncrl.plug_in import describe
from asyncrl.reward.actor import RewardActor
from asyncrl.reward.verifier import GroupMember, Verdict, VerifierInput, verdict_of
from asyncrl.runtime.rollout import Host, roll_out
from asyncrl.runtime.sessions import NodeSession, RunNode, ToldToStop
from asyncrl.wire.handshake import identity
from asyncrl.wire.run_address import check_location, find_run

log = get_logger()


async def attach(
    engine: Engine,
    address: str | os.PathLike[str],
    name: str,
    *,
    slots: int,
    key: str | os.PathLike[str] | None = None,
    wait_s: float | None = None,
    host: Host | None = None,
    weights: WeightsVia = "collective",
) -> None:
    """
    Generate trajectories with ``engine`` until the run is over or the broker drains this node.

    The broker leases prompts to the node and sends it every new policy version. If the broker restarts or is away, the
    node waits for it, with warnings in the log, then joins it again with its unfinished trajectories. Cancel the
    coroutine to leave at once: other nodes then generate the unfinished trajectories again.

    Args:
        engine: Remains open and owned by the caller. It must have the architecture of the trainer's model; its weights
            are replaced by the first transfer.
        address: Address of the broker, such as ``tcp://127.0.0.1:5570``, or a run directory of this machine.
        name: Name of this node, unique in the run.
        slots: Maximum number of completions that the engine decodes concurrently.
        key: File with the key of this node, or with the secret of the run. Not needed on the broker's machine by
            processes of its user.
        wait_s: Seconds to wait for the broker to answer, at the start and whenever it was lost; None waits as long as
            the coroutine runs.
        host: Users' requests that the rollout makes way for, and the place of its health. None samples all the time.
        weights: Way by which weights reach the node: ``collective``, or ``spool`` for a node that the trainer cannot
            reach, such as one in another data centre.

    Raises:
        ConfigError: ``address`` is not an address, there are no credentials for it, or the run's devices are shared.
        LinkError: The broker does not answer within ``wait_s``.
        LinkRefused: The broker rejects the node, for example because its model differs from the trainer's.
        EngineError, EngineDied: The engine failed.
    """
    host = host or Host()
    address = os.fspath(address)
    try:
        host.enter("waiting_for_broker")
        check_location(address, "address")
        run = await find_run(address, Path(key) if key else None, wait_s)
        joining = partial(RunNode, run=run, wait_s=wait_s, rejoin_on=LinkError)

        async def opened(session: NodeSession) -> tuple[Engine, int]:
            if session.config.rollout.colocated:
                raise ConfigError(
                    f"the run at {address} has rollout.colocated: its rollouts sleep in the trainer's turns, and an "
                    f"engine that serves users cannot; use a run without it"
                )
            return engine, slots

        node = joining(identity("rollout", name))
        while await _until_busy(node, roll_out(node, opened, weights=weights, host=host), host):
            await host.users.until_idle()
            host.enter("waiting_for_broker")
            node = joining(identity("rollout", name), run_id=node.run_id)
    except Exception as error:  # the host may never await the task, and must hear of its end nevertheless
        host.failed(error)
        log.error("rollout.ended", node=name, address=address, cause=f"{type(error).__name__}: {error}")
        raise
    finally:
        host.enter("ended")


async def _until_busy(node: RunNode, rolling: Awaitable[None], host: Host) -> bool:
    """Await ``rolling``, but leave the run when users keep the host busy for long. True if they did."""
    is_handed_back = False

    async def hand_back() -> None:
        nonlocal is_handed_back
        await host.users.until_busy_for(host.hand_back_s)
        is_handed_back = True
        log.info("rollout.handed_back", node=node.who.node, busy_s=host.hand_back_s)
        host.enter("paused_for_users")
        node.stopping.set()

    handing_back = asyncio.create_task(hand_back(), name="asyncrl-hand-back")
    try:
        await rolling
    except ToldToStop:  # The broker was lost meanwhile; it leases the trajectories again.
        pass
    finally:
        handing_back.cancel()
    return is_handed_back


# ── rewards ───────────────────────────────────────────────────────────────────────────────────

Grade = Callable[[VerifierInput], Awaitable[object]]
"""Gives a number, or a dict with ``score``, as a reward function does."""


class OwnJudge:
    """A host's function in place of workers, with at most ``at_once`` calls that each may take ``timeout_s``."""

    replaced = 0

    def __init__(self, grade: Grade, at_once: int, timeout_s: float) -> None:
        self._grade = grade
        self._at_once = at_once
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(at_once)

    def __len__(self) -> int:
        return self._at_once

    async def judge(self, inputs: VerifierInput) -> Verdict:
        """
        Raises:
            VerifierError: The function raised, took too long, or returned no verdict.
        """
        async with self._room:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return verdict_of(await self._grade(inputs))
            except VerifierError:
                raise
            except TimeoutError as error:
                raise VerifierError(f"the function took longer than {self._timeout_s:g} s", retryable=True) from error
            except Exception as error:
                raise VerifierError(f"the function raised {describe(error, __file__)}") from error

    async def judge_group(self, members: list[GroupMember]) -> list[Verdict]:
        raise VerifierError(f"this node compares no groups, such as one of {len(members)}")


async def attach_reward(
    grade: Grade,
    address: str | os.PathLike[str],
    name: str,
    *,
    at_once: int = 64,
    key: str | os.PathLike[str] | None = None,
    wait_s: float | None = None,
) -> None:
    """
    Grade trajectories with ``grade``, in this process, until the run is over or the broker drains this node.

    Its verdicts take the place of ``reward.function``'s for the trajectories that this node is given; other reward
    nodes of the run get the rest. A broker that is lost is waited for, as in `attach`. Cancel the coroutine to leave.

    Args:
        grade: Awaited for each trajectory; it has ``reward.timeout_s`` of the run.
        address, name, key, wait_s: As in `attach`.
        at_once: Most calls at one time.

    Raises:
        ConfigError: ``address`` is not an address, there are no credentials for it, or the run compares groups.
        LinkError: The broker does not answer within ``wait_s``.
        LinkRefused: The broker rejects the node.
    """
    check_location(address := os.fspath(address), "address")
    run = await find_run(address, Path(key) if key else None, wait_s)
    node = RunNode(identity("reward", name), run, wait_s=wait_s, rejoin_on=LinkError)
    with suppress(ToldToStop):
        async for session in node.sessions():
            reward = session.config.reward
            if reward.group:
                raise ConfigError(f"the run at {address} compares groups (reward.group): start asyncrl-node for it")
            async with session:
                judge = OwnJudge(grade, at_once, reward.timeout_s)
                await session.serve(
                    RewardActor(pool=judge, connection=session.connection(), on_drain=node.stopping.set)
                )
