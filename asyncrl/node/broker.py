"""Builds the broker's process: rules, ledger, control hub, and the spool it hosts."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from asyncrl.actor.zmq_link import DATA_FRAME_BYTES, ZmqHub, ZmqLink
from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import LedgerReader
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.client.handshake import beat, greet, identity
from asyncrl.config.sections import Config
from asyncrl.data.check import SHOWN
from asyncrl.data.dataset import by_reason
from asyncrl.data.prompts import PromptStream, held_out_stream, train_stream
from asyncrl.errors import LinkReset
from asyncrl.files.json_lines import JsonLines
from asyncrl.messages import Beat
from asyncrl.node.agreement import require_agreement
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.segments import Segments

log = structlog.get_logger()

SPOOL = "spool"

COLLECT_AFTER = 100_000
"""How many more objects there must be before Python looks for cycles. Its default, 700, is reached all the time, and
the rules leave no cycles."""


def collect_rarely() -> None:
    """Let a broker's process seldom look through all that it knows of nodes and groups for cycles: there are none."""
    gc.set_threshold(COLLECT_AFTER)


async def run_broker(
    config: Config,
    directory: RunDirectory,
    *,
    bind: str,
    listening: Callable[[str], None],
    stopping: asyncio.Event,
) -> None:
    """
    Serve one run, from where its ledger says it was.

    Args:
        bind: Control address.
        listening: Told the address once nodes may connect.
        stopping: Set by whoever wants the run to end early.

    Raises:
        RunFailed: The run ended early; the message is the cause.
        DataError, LinkError, LedgerError: It could not start, or what an earlier broker left is damaged.
    """
    prompts = train_stream(config.data, config.run.seed)
    held_out = held_out_stream(config.data, config.evaluation.max_prompts) if config.data.held_out_files else None
    with contextlib.ExitStack() as files:
        ledger = Ledger(directory.ledger)
        files.callback(ledger.close)
        segments = Segments(directory.spool, segment_bytes=config.broker.segment_bytes)
        files.callback(segments.close)
        _tell_of_torn_tails(directory, ledger, segments)
        _tell_of_skipped_rows(directory, {"train": prompts, "held_out": held_out})
        asked = [draw.prompt for draw in held_out.since(0)] if held_out else []
        scheduler = Scheduler(config, prompts, asked, ledger.broker_term)
        with LedgerReader(directory.ledger, is_ours=True) as reader:
            replay(scheduler, reader.records())
        require_agreement(directory, scheduler, segments, spool=SPOOL, broker_term=ledger.broker_term)
        await _serve(config, directory, scheduler, ledger, segments, bind=bind, listening=listening, stopping=stopping)


async def _serve(
    config: Config,
    directory: RunDirectory,
    scheduler: Scheduler,
    ledger: Ledger,
    segments: Segments,
    *,
    bind: str,
    listening: Callable[[str], None],
    stopping: asyncio.Event,
) -> None:
    hub = ZmqHub(bind)
    bulk = ZmqHub(config.broker.spool_bind, max_frame_bytes=DATA_FRAME_BYTES)
    own_spool = ZmqLink(bulk.address, f"broker.{ledger.broker_term}", max_frame_bytes=DATA_FRAME_BYTES)
    broker = BrokerActor(
        config,
        scheduler,
        hub,
        ledger,
        directory,
        spool=own_spool,
        spool_address=bulk.address,
        broker_term=ledger.broker_term,
    )
    background = [
        asyncio.create_task(_run_spool(hub, bulk, segments, config.broker.beat_s), name="spool"),
        asyncio.create_task(_stop_when(stopping, broker), name="stop"),
    ]
    background[0].add_done_callback(lambda task: _spool_ended(task, broker))
    try:
        listening(hub.address)
        await broker.run()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await own_spool.aclose()
        await hub.aclose()
        await bulk.aclose()


def _tell_of_torn_tails(directory: RunDirectory, ledger: Ledger, segments: Segments) -> None:
    """What an earlier broker did not finish is cut, and that is said: once, by the one that cut it."""
    metrics, events = (JsonLines(path).cut() for path in (directory.metrics, directory.events))
    for what, torn in (("ledger", ledger.torn), ("spool", segments.torn), ("metrics", metrics), ("events", events)):
        if torn is not None:
            lost = {"path": str(torn.path), "offset": torn.offset, "num_bytes": torn.num_bytes}
            log.warning(f"{what}.cut", **lost)
            directory.append_event(f"{what}.cut", **lost)


def _tell_of_skipped_rows(directory: RunDirectory, streams: Mapping[str, PromptStream | None]) -> None:
    """Rows that this run leaves out are counted, with their reasons; `asyncrl data check --list` names each."""
    for split, stream in streams.items():
        if stream and stream.summary.bad:
            reasons = dict(list(by_reason(stream.summary.bad).items())[:SHOWN])
            left_out = {"split": split, "num_rows": len(stream.summary.bad), "reasons": reasons}
            log.warning("data.rows_skipped", **left_out)
            directory.append_event("data.rows_skipped", **left_out)


async def _run_spool(hub: ZmqHub, bulk: ZmqHub, segments: Segments, beat_s: float) -> None:
    """Until the run is over. Should the broker take its own spool for lost, it joins anew."""
    while True:
        who = identity("spool", SPOOL)
        link = hub.connect_local(who.peer)
        await greet(link, who)
        beats = asyncio.create_task(beat(link, beat_s, Beat))
        try:
            await SpoolActor(SPOOL, segments, bulk, link).run()
            return
        except LinkReset as reset:
            log.warning("spool.lost", cause=str(reset))
        finally:
            beats.cancel()


def _spool_ended(task: "asyncio.Task[None]", broker: BrokerActor) -> None:
    """A spool that cannot write ends the run: going on would lose data."""
    if not task.cancelled() and (error := task.exception()):
        broker.stop(f"spool: {error}")


async def _stop_when(stopping: asyncio.Event, broker: BrokerActor) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await stopping.wait()
        broker.stop("the broker was told to stop")


def create_directory(config: Config, config_path: Path) -> RunDirectory:
    """A new run directory, named after the run or else after its config file."""
    return RunDirectory.create(Path(config.run.dir), config.run.name or config_path.stem)
