"""The broker's process: scheduler, ledger, control hub, and the spool in the same process."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from asyncrl.actor.zmq_link import DATA_FRAME_BYTES, ZmqHub, ZmqLink
from asyncrl.broker.actor import BrokerActor
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.client.handshake import identity, send_beats, shake_hands
from asyncrl.config.sections import Config
from asyncrl.data.check import SHOWN
from asyncrl.data.dataset import count_reasons
from asyncrl.data.prompts import PromptStream, held_out_stream, train_stream
from asyncrl.errors import LinkReset
from asyncrl.files.json_lines import JsonLines
from asyncrl.messages import CODEC, Beat
from asyncrl.node.consistency import require_consistent_files
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.segments import Segments

log = structlog.get_logger()

SPOOL = "spool"

COLLECT_AFTER = 100_000
"""New objects between two runs of the garbage collector. Python's default, 700, is exceeded all the time, and the
broker creates no reference cycles."""


def raise_gc_threshold() -> None:
    """Make garbage collection rare in this process: it would traverse the broker's whole state and free nothing."""
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
    Serve one run, resuming from its ledger.

    Args:
        bind: Control address.
        listening: Called with the bound address once nodes can connect.
        stopping: Set to end the run early.

    Raises:
        RunFailed: The run ended early; the message is the cause.
        DataError, LinkError, LedgerError: The broker could not start, or the files of the run are damaged.
    """
    prompts = train_stream(config.data, config.run.seed)
    held_out = held_out_stream(config.data, config.evaluation.max_prompts) if config.data.held_out_files else None
    with contextlib.ExitStack() as files:
        ledger = Ledger(directory.ledger)
        files.callback(ledger.close)
        segments = Segments(directory.spool, segment_bytes=config.broker.segment_bytes)
        files.callback(segments.close)
        _report_torn_tails(directory, ledger, segments)
        _report_skipped_rows(directory, {"train": prompts, "held_out": held_out})
        held_out_prompts = [draw.prompt for draw in held_out.since(0)] if held_out else []
        scheduler = Scheduler(config, prompts, held_out_prompts, ledger.broker_term)
        replay(scheduler, read_records(directory.ledger, is_writer_process=True))
        require_consistent_files(directory, scheduler, segments, spool=SPOOL, broker_term=ledger.broker_term)
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
    hub = ZmqHub(bind, CODEC)
    bulk = ZmqHub(config.broker.spool_bind, CODEC, max_frame_bytes=DATA_FRAME_BYTES)
    own_spool = ZmqLink(bulk.address, f"broker.{ledger.broker_term}", CODEC, max_frame_bytes=DATA_FRAME_BYTES)
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
    background[0].add_done_callback(lambda task: _stop_on_spool_error(task, broker))
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


def _report_torn_tails(directory: RunDirectory, ledger: Ledger, segments: Segments) -> None:
    """Report incomplete records of an earlier broker, which were cut off on opening the files."""
    metrics, events = (JsonLines(path).cut() for path in (directory.metrics, directory.events))
    for what, torn in (("ledger", ledger.torn), ("spool", segments.torn), ("metrics", metrics), ("events", events)):
        if torn is not None:
            lost = {"path": str(torn.path), "offset": torn.offset, "num_bytes": torn.num_bytes}
            log.warning(f"{what}.cut", **lost)
            directory.append_event(f"{what}.cut", **lost)


def _report_skipped_rows(directory: RunDirectory, streams: Mapping[str, PromptStream | None]) -> None:
    """Report the number of skipped rows by reason; `asyncrl data check --list` lists them."""
    for split, stream in streams.items():
        if stream and stream.summary.bad:
            reasons = dict(list(count_reasons(stream.summary.bad).items())[:SHOWN])
            skipped = {"split": split, "num_rows": len(stream.summary.bad), "reasons": reasons}
            log.warning("data.rows_skipped", **skipped)
            directory.append_event("data.rows_skipped", **skipped)


async def _run_spool(hub: ZmqHub, bulk: ZmqHub, segments: Segments, beat_s: float) -> None:
    """Serve the spool until the run is over, joining the broker again whenever it declares the spool lost."""
    while True:
        who = identity("spool", SPOOL)
        link = hub.connect_local(who.peer)
        await shake_hands(link, who)
        beats = asyncio.create_task(send_beats(link, beat_s, Beat))
        try:
            await SpoolActor(SPOOL, segments, bulk, link).run()
            return
        except LinkReset as reset:
            log.warning("spool.lost", cause=str(reset))
        finally:
            beats.cancel()


def _stop_on_spool_error(task: "asyncio.Task[None]", broker: BrokerActor) -> None:
    """End the run if the spool failed, because going on would lose data."""
    if not task.cancelled() and (error := task.exception()):
        broker.stop(f"spool: {error}")


async def _stop_when(stopping: asyncio.Event, broker: BrokerActor) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await stopping.wait()
        broker.stop("the broker was told to stop")


def create_directory(config: Config, config_path: Path) -> RunDirectory:
    """A new run directory, named after ``run.name`` or else after the config file."""
    return RunDirectory.create(Path(config.run.dir), config.run.name or config_path.stem)
