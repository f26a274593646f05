"""
The broker's process: opens the ledger, and runs scheduler, control hub, and a spool unless ``broker.spool`` is false.
"""

import asyncio
import contextlib
import gc
import resource
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from asyncrl.broker.actor import LOCKED_S, BrokerActor
from asyncrl.broker.ledger.database import CONFIG, LockWait, holder
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Written
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.staleness_control import StalenessChoice, StalenessControl
from asyncrl.broker.traces import TraceIds, Traces
from asyncrl.config.checks.check import advice
from asyncrl.config.config import Config, from_json, to_json
from asyncrl.config.live import changed
from asyncrl.config.sections.data import Data
from asyncrl.data.check import SHOWN
from asyncrl.data.dataset import count_reasons
from asyncrl.data.digest import check_same
from asyncrl.data.prompts import PromptStream, held_out_stream, num_shared_prompts, train_stream
from asyncrl.errors import AsyncrlError, ConfigError, LinkReset
from asyncrl.files.atomic import TornTail
from asyncrl.files.json_lines import JsonLines
from asyncrl.files.lock import private_socket
from asyncrl.log import about, get_logger
from asyncrl.messages.permit import Permits
from asyncrl.messages.session import Beat, Hello
from asyncrl.messages.spool import HOSTED_SPOOL, SpoolAddress
from asyncrl.messages.wire import CODEC
from asyncrl.records.events import EventKind
from asyncrl.records.metrics_targets import belongs_to, read_from
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import SHARED_EVENT
from asyncrl.records.spans import SendSpans
from asyncrl.reward.routing import check_routes
from asyncrl.runtime.held_run import require_consistent_files
from asyncrl.runtime.keys import BrokerKeys, cut_revoked, tell_spools
from asyncrl.runtime.model_files import model_files, models_elsewhere
from asyncrl.runtime.origin import settle
from asyncrl.runtime.process import why_told
from asyncrl.runtime.service_manager import service_manager
from asyncrl.runtime.spool import keep_socket
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.checkpoints import CheckpointStore, FileServer
from asyncrl.spool.images import ImageStore
from asyncrl.spool.segments import Segments
from asyncrl.spool.weights import WeightStore
from asyncrl.wire.addresses import announced
from asyncrl.wire.handshake import Identity, hello, identity, send_beats, shake_hands, spool_connector
from asyncrl.wire.link import Link
from asyncrl.wire.session import Limits
from asyncrl.wire.zmq_hub import ZmqHub

# ── auto staleness ────────────────────────────────────────────────────────────────────────────
# ``schedule.staleness = "auto"`` in the broker's process: asks for a choice when one is due, and passes it on.
#
#     every few steps ─▶ process of its own: a plan fitted to the run ─▶ StalenessChoice ─▶ BrokerActor.follow

LOOK_S = 1.0
"""Seconds between two looks at whether a choice is due."""

Choose = Callable[[Path], Awaitable[StalenessChoice]]
"""Fits a plan to the run in a folder; raises `AsyncrlError` if it cannot."""


async def control_staleness(
    broker: BrokerActor,
    scheduler: Scheduler,
    path: Path,
    choose: Choose,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Follow the plans of the run in ``path``, as long as no operator has set a number; until cancelled."""
    control = StalenessControl(scheduler.training.batches.next_step)
    while True:
        await sleep(LOOK_S)
        settings = scheduler.settings
        if not settings.is_auto or not control.is_due(settings.config, scheduler.training.batches.next_step):
            continue
        try:
            choice = await choose(path)
        except AsyncrlError as error:
            broker.unplanned(str(error))
        else:
            broker.follow(choice)
        control.answered(scheduler.training.batches.next_step)


# ── opening ───────────────────────────────────────────────────────────────────────────────────
# Opening of a run's ledger: in a thread, because another program may have locked it, and the broker must hear
# meanwhile that it is to stop.

log = get_logger()

LOCK_LOOK_S = 0.1
"""Seconds between two looks at whether the ledger is open."""


async def open_ledger(
    path: Path, prepare: Callable[[Ledger], None], stopping: asyncio.Event, lock_wait: LockWait | None = None
) -> Ledger | None:
    """
    Open the ledger at ``path``, and call ``prepare``, which may write facts of the run into it.

    Returns None if ``stopping`` was set while another program kept it locked. Raises as `Ledger` and ``prepare``.
    """
    lock_wait = lock_wait or LockWait()
    opening = asyncio.create_task(asyncio.to_thread(_opened, path, prepare, lock_wait))
    is_told = False
    try:
        while not opening.done():
            await asyncio.wait([opening], timeout=LOCK_LOOK_S)
            if stopping.is_set():
                lock_wait.leave(0.0)
            if lock_wait.waited_s >= LOCKED_S and not is_told:
                log.warning("ledger.locked", path=str(path), by=holder(path))
                is_told = True
    finally:
        if not opening.done():
            lock_wait.leave(0.0)
    if stopping.is_set() and lock_wait.has_given_up:
        log.warning("ledger.left_locked", path=str(path), cause=str(opening.exception()))
        return None
    return opening.result()


def _opened(path: Path, prepare: Callable[[Ledger], None], lock_wait: LockWait) -> Ledger:
    ledger = Ledger(path, lock_wait)
    try:
        prepare(ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


# ── broker ────────────────────────────────────────────────────────────────────────────────────

CONTROL = Limits(received=8 << 20)
"""Nothing that nodes tell the broker is larger: what a rollout holds takes about 60 bytes a trajectory."""
PERMIT_KEY, PERMIT_KEY_BYTES = "permit_key", 32
"""Key in the ledger of the secret of permits, which outlive the broker that gave them."""
COLLECT_AFTER = 100_000
"""New objects between two runs of the garbage collector. Python's default, 700, is exceeded all the time, and the
broker creates no reference cycles."""


def raise_gc_threshold() -> None:
    """Make garbage collection rare in this process: it would traverse the broker's whole state and free nothing."""
    gc.set_threshold(COLLECT_AFTER)


def raise_file_limit() -> None:
    """Let this process open as many files as it may: connections of strangers must not leave none for the ledger."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def run_broker(
    config: Config,
    directory: RunDirectory,
    *,
    bind: Sequence[str],
    keys: BrokerKeys,
    listening: Callable[[list[str]], None],
    stopping: asyncio.Event,
    choose_staleness: Choose | None = None,
    send_spans: SendSpans | None = None,
) -> None:
    """
    Serve one run, resuming from its ledger.

    Args:
        bind: Control addresses.
        keys: Required of nodes that connect by TCP.
        listening: Called with the bound addresses once nodes can connect; never if the run is complete already.
        stopping: Set to stop serving; the run continues when a broker serves it again.
        choose_staleness: Fits a plan to the run, for ``schedule.staleness = "auto"``.
        send_spans: Takes the spans of every training group; None traces nothing.

    Raises:
        RunFailed: The run ended early; the message is the cause.
        ConfigError: A data source of the prompts has no reward.
        DataError, LinkError, LedgerError: The broker could not start, or the files of the run are damaged.
    """
    about(run=directory.path.name)
    belongs_to(directory.path.name)
    if config.schedule.staleness == "auto" and choose_staleness is None:
        raise ConfigError("schedule.staleness is 'auto', but this program fits no plan to the run: give a number")
    with contextlib.ExitStack() as files:
        images = ImageStore(directory.spool)
        files.callback(images.close)
        prompts = train_stream(config.data, config.run.seed, images.add)
        num_held_out = config.evaluation.max_prompts
        held_out = held_out_stream(config.data, num_held_out, images.add) if config.data.held_out_files else None
        if len(images) and not config.broker.spool:
            raise ConfigError("prompts with pictures need the spool in the broker's process: set broker.spool to true")

        written = list[Written]()

        def prepare(ledger: Ledger) -> None:
            written.extend(_prepared(directory, ledger, config, {"train": prompts, "held_out": held_out}))

        ledger = await open_ledger(directory.ledger, prepare, stopping)
        if ledger is None:
            return
        files.callback(ledger.close)
        for sentence in (*advice(config), *models_elsewhere(config)):
            log.warning("config.advice", advice=sentence)
            directory.append_event("config.advice", advice=sentence)
        await ledger.commit([ledger.started(), *written])
        for stream in filter(None, (prompts, held_out)):
            check_routes(config.reward, stream.summary.data_sources)
        segments = weights = None
        spool_binds = config.broker.spool_binds
        if config.broker.spool:
            if not spool_binds:
                spool_binds = [files.enter_context(private_socket("spool", ledger.run_id, directory.path))]
            segments = Segments(directory.spool, segment_bytes=config.broker.segment_bytes)
            files.callback(segments.close)
            weights = WeightStore(directory.spool / "weights")
            files.callback(weights.close)
        _report_torn_tails(directory, ledger, segments)
        _report_skipped_rows(directory, {"train": prompts, "held_out": held_out})
        if held_out and not config.environment.is_set:
            _report_shared_prompts(directory, prompts, held_out)
        draws = list(held_out.since(0)) if held_out else []
        held_out_prompts, held_out_rows = [draw.prompt for draw in draws], [draw.row for draw in draws]
        permits = Permits(bytes.fromhex(str(ledger.read_meta(PERMIT_KEY))))
        scheduler = Scheduler(config, prompts, held_out_prompts, ledger.broker_term, held_out_rows, permits=permits)
        size = {"num_records": ledger.head.num_records, "num_bytes": directory.ledger.stat().st_size}
        log.info("ledger.reading", **size)
        replay(scheduler, read_records(directory.ledger, is_writer_process=True))
        log.info("ledger.read", **size)
        require_consistent_files(directory, scheduler, segments, spool=HOSTED_SPOOL, broker_term=ledger.broker_term)
        scheduler.spool_loss.expect(hosted=HOSTED_SPOOL if segments else "")
        await _serve(
            config,
            directory,
            scheduler,
            ledger,
            segments,
            weights=weights,
            images=images,
            bind=bind,
            spool_binds=spool_binds,
            keys=keys,
            listening=listening,
            stopping=stopping,
            choose_staleness=choose_staleness,
            send_spans=send_spans,
        )


def _prepared(
    directory: RunDirectory, ledger: Ledger, config: Config, prompts: Mapping[str, PromptStream | None]
) -> list[Written]:
    """Compare and record the facts about a run. Returns records of the files that a copy of a run has written anew."""
    before, permit_key = ledger.run_id, secrets.token_hex(PERMIT_KEY_BYTES)
    manifests = settle(directory, ledger)
    if ledger.run_id != before:  # Permits of the original are none of its copy.
        ledger.write_meta(PERMIT_KEY, permit_key)
    record_config(directory, ledger, config)
    require_same_data(config.data, ledger, prompts)
    ledger.remember(PERMIT_KEY, permit_key)
    return [Written(str(path.relative_to(directory.path)), sha256(path.read_bytes()).hexdigest()) for path in manifests]


async def _serve(
    config: Config,
    directory: RunDirectory,
    scheduler: Scheduler,
    ledger: Ledger,
    segments: Segments | None,
    *,
    weights: WeightStore | None,
    images: ImageStore,
    bind: Sequence[str],
    spool_binds: Sequence[str],
    keys: BrokerKeys,
    listening: Callable[[list[str]], None],
    stopping: asyncio.Event,
    choose_staleness: Choose | None,
    send_spans: SendSpans | None,
) -> None:
    hubs = [ZmqHub(bind, CODEC, keys=keys.hub, limits=CONTROL)]
    hub, bulk = hubs[0], None
    if segments is not None:
        bulk = ZmqHub(spool_binds, CODEC, keys=keys.hub)
        hubs.append(bulk)
        hosted = SpoolAddress(HOSTED_SPOOL, announced(bulk.addresses, config.broker.advertise))
        # From the start: a node may say Hello before the spool does, and some links are made by its Welcome alone.
        scheduler.spools.joined(hosted)
    models = model_files(config)
    broker = BrokerActor(
        config,
        scheduler,
        hub,
        ledger,
        directory,
        connect=_connector(bulk, keys),
        broker_term=ledger.broker_term,
        run_id=ledger.run_id,
        models=models,
        traces=Traces(scheduler, TraceIds(ledger.run_id, ledger.broker_term), send_spans) if send_spans else None,
    )
    background = [asyncio.create_task(_stop_when(stopping, broker), name="stop")]
    if choose_staleness:
        control = control_staleness(broker, scheduler, directory.path, choose_staleness)
        background.append(asyncio.create_task(control, name="staleness"))
        background[-1].add_done_callback(lambda task: _stop_on_error(task, broker))
    if bulk and segments is not None:
        served = {model.path: [file.name for file in model.files] for model in models}
        files = FileServer(served, directory.path / "digests.json", directory.checkpoints)
        checkpoints = CheckpointStore(directory.checkpoints)
        actor = partial(
            SpoolActor,
            HOSTED_SPOOL,
            segments,
            bulk,
            weights=weights,
            files=files,
            checkpoints=checkpoints,
            images=images,
            permits=scheduler.dispatcher.permits,
        )
        spool = _run_spool(hub, hosted, actor, config.broker.beat_s)
        background.append(asyncio.create_task(keep_socket(bulk), name="socket"))
        background.append(asyncio.create_task(spool, name="spool"))
        background[-1].add_done_callback(lambda task: _stop_on_error(task, broker))
    if keys.allowed:
        background.append(asyncio.create_task(cut_revoked(keys.allowed, hubs, broker.lost), name="keys"))
        background.append(asyncio.create_task(tell_spools(keys, scheduler.nodes, hub), name="spool keys"))
    try:
        if not scheduler.is_finished:  # Otherwise no node is needed: the broker writes what is missing, and ends.
            listening(hub.addresses)
            service_manager().ready(lambda: _status(config, scheduler, time.monotonic()))
        with read_from(broker.metrics):
            await broker.run()
    finally:
        if images.num_sent:
            directory.append_event("images.sent", num_images=len(images), by_node=dict(images.num_sent))
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for each in hubs:
            await each.aclose()


def _connector(bulk: ZmqHub | None, keys: BrokerKeys) -> Callable[[SpoolAddress], Link]:
    """Function that opens a link to a spool; to the one in this process, without a socket."""
    who = identity("broker", "broker")
    remote = spool_connector(who, keys.link)

    def connect(spool: SpoolAddress) -> Link:
        return bulk.local.connect(who.peer) if bulk and spool.name == HOSTED_SPOOL else remote(spool)

    return connect


def _status(config: Config, scheduler: Scheduler, now_s: float) -> str:
    """Progress, connected nodes and absent spools, for the service manager."""
    others = [node for node in scheduler.nodes.all() if node.role not in ("spool", "supervisor")]
    quiet = ", ".join(node.name for node in others if node.is_quiet)
    step, version = scheduler.training.batches.next_step, scheduler.transfers.live_version
    nodes = f"{len(others)} nodes" + (f", not heard: {quiet}" if quiet else "")
    away = "".join(f"; {note}" for note in scheduler.spool_loss.notes(now_s))
    return f"step {step} of {config.run.steps}, v{version}, {nodes}{away}"


def record_config(directory: RunDirectory, ledger: Ledger, config: Config) -> None:
    """Record the configuration of a new run, and what changed in it since. Raises `ConfigError` as `changed` does."""
    recorded = ledger.remember(CONFIG, to_json(config).decode())
    if differing := changed(from_json(recorded.encode()), config):
        ledger.write_meta(CONFIG, to_json(config).decode())
        directory.append_event("run.config_changed", **differing)


def require_same_data(data: Data, ledger: Ledger, streams: Mapping[str, PromptStream | None]) -> None:
    """Record the digests of the prompts in a new ledger; raise `DataError` if an old one has others."""
    files = {"train": data.train_files, "held_out": data.held_out_files}
    for split, stream in streams.items():
        if stream:
            recorded = ledger.remember(f"{split}_digest", stream.summary.digest)
            check_same(f"data.{split}", files[split], recorded, stream.summary.digest)


def _report_torn_tails(directory: RunDirectory, ledger: Ledger, segments: Segments | None) -> None:
    """Report incomplete records of an earlier broker, which were cut off on opening the files."""
    torn_by_kind: dict[EventKind, TornTail | None] = {
        "ledger.cut": ledger.torn,
        "spool.cut": None if segments is None else segments.torn,
        "metrics.cut": JsonLines(directory.metrics).cut(),
        "events.cut": JsonLines(directory.events).cut(),
    }
    for kind, torn in torn_by_kind.items():
        if torn is not None:
            lost = {"path": str(torn.path), "offset": torn.offset, "num_bytes": torn.num_bytes}
            log.warning(kind, **lost)
            directory.append_event(kind, **lost)


def _report_skipped_rows(directory: RunDirectory, streams: Mapping[str, PromptStream | None]) -> None:
    """Report the number of skipped rows by reason; `asyncrl data check --list` lists them."""
    for split, stream in streams.items():
        if stream and stream.summary.bad:
            reasons = dict(list(count_reasons(stream.summary.bad).items())[:SHOWN])
            skipped = {"split": split, "num_rows": len(stream.summary.bad), "reasons": reasons}
            log.warning("data.rows_skipped", **skipped)
            directory.append_event("data.rows_skipped", **skipped)


def _report_shared_prompts(directory: RunDirectory, train: PromptStream, held_out: PromptStream) -> None:
    """Report held-out prompts that are trained on, for whoever reads an accuracy."""
    if num_shared := num_shared_prompts(train, held_out):
        shared = {"num_shared": num_shared, "num_held_out": held_out.num_rows}
        log.warning(SHARED_EVENT, **shared)
        directory.append_event(SHARED_EVENT, **shared)


async def _run_spool(
    hub: ZmqHub, address: SpoolAddress, make_actor: Callable[[Link], SpoolActor], beat_s: float
) -> None:
    """Serve the spool until the run is over, joining the broker again whenever it declares the spool lost."""

    def say(who: Identity) -> Hello:
        return replace(hello(who), spool=address)

    while True:
        who = identity("spool", address.name)
        link = hub.local.connect(who.peer)
        await shake_hands(link, who, say)
        beats = asyncio.create_task(send_beats(link, beat_s, Beat))
        try:
            actor = make_actor(link)
            with read_from(actor.metrics):
                await actor.run()
            return
        except LinkReset as reset:
            log.warning("spool.lost", cause=str(reset))
        finally:
            beats.cancel()


def _stop_on_error(task: "asyncio.Task[None]", broker: BrokerActor) -> None:
    """End the run if a part of the broker has failed: without the spool, going on would lose data."""
    if not task.cancelled() and (error := task.exception()):
        broker.stop(f"{task.get_name()}: {error}")


async def _stop_when(stopping: asyncio.Event, broker: BrokerActor) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await stopping.wait()
        broker.suspend(why_told(stopping))
