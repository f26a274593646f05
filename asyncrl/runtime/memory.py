"""
Memory that a run will need, against the memory that there is, before anything is started.

    trainer     load, step, publish, checkpoint, resume       `asyncrl.trainer.memory`
    rollout     weights, KV cache, staging                    here
    broker      newest payloads, their index                  `asyncrl.spool.segments`
                         └─▶ each device's memory, and a machine's ─▶ fits, or one sentence with what to change

Imports torch: a process that starts others asks in a process of its own.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.engines import imported
from asyncrl.config.memory import EngineRoom, MemoryPart
from asyncrl.config.run_file import with_backend
from asyncrl.errors import ConfigError
from asyncrl.runtime.machine import format_bytes
from asyncrl.spool.segments import CACHE_BYTES, INDEX_BYTES, most_indexed
from asyncrl.trainer.memory import Phase, TrainerMemory, phase
from asyncrl.trainer.model.architecture import read_architecture
from asyncrl.weights.contents.layout import ITEM_BYTES, Layout
from asyncrl.weights.groups.device import STAGED_ON, require

Kind = Literal["cpu", "cuda", "npu"]

LIBRARIES_HOST = 400 << 20
"""Memory of a process with torch and transformers, and nothing loaded. An estimate."""
BROKER_HOST = 64 << 20
"""Memory of a broker's process that has just begun. An estimate."""
LIBRARIES_DEVICE = 1 << 30
"""Memory on a device that its context, collectives and kernels take. An estimate."""
CGROUP = Path("/sys/fs/cgroup/memory.max")
UNITS = {"MB": 1000**2, "GB": 1000**3, "TB": 1000**4, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """Bytes that a run needs."""

    device: str
    """Kind of the trainer's devices: on a ``cpu``, device and host are one memory."""
    rollout_device: str
    """Kind of the rollouts' devices."""
    ranks: int
    """Ranks of the trainer on each machine."""
    replicas: int
    """Rollouts on the trainer's machine."""
    trainer: list[Phase]
    rollout: Phase
    broker: Phase
    """Most that its process holds, with its spool, whatever the number of steps."""
    host: int
    """Memory of the trainer's machine, all in all."""
    problem: str
    """One sentence about the first part of the run that does not fit; empty if everything fits."""
    assumptions: list[str]


class Room(Struct, frozen=True, kw_only=True):
    """Memory that there is, in bytes; None if it is not known."""

    device: int | None = None
    """Memory of the smallest device."""
    host: int | None = None
    """Memory of this machine."""


def plan_memory(config: Config, room: Room) -> MemoryPlan:
    """
    Predict the memory of a run, all of whose rollouts are on the trainer's machine.

    Raises:
        ConfigError: The trainer cannot compute or train the model of ``model.path``, whose weights need not be there.
    """
    config = with_backend(config)
    trainer = TrainerMemory(config, Path(config.model.path))
    kind, rollout_kind = config.trainer.device, _rollout_kind(config)
    own = MemoryPart(
        name="libraries", device=0 if kind == "cpu" else LIBRARIES_DEVICE, host=config.trainer.ranks * LIBRARIES_HOST
    )
    # What stays on a shared device of the role whose turn it is not.
    stays = LIBRARIES_DEVICE if config.rollout.colocated and kind != "cpu" else 0
    sleeper = MemoryPart(name="libraries of who sleeps", device=stays)
    phases = [phase(each.name, *each.parts, own, sleeper) for each in trainer.phases()]
    rollout = _rollout(config, trainer, rollout_kind, room)
    rollout = phase(rollout.name, *rollout.parts, sleeper, _parked(config, trainer, rollout))
    fullest = max(phases, key=lambda each: each.device if kind == "cpu" else each.host)
    broker = _broker(config)
    host = _host_bytes(config, rollout_kind, phases, rollout) + broker.host
    return MemoryPlan(
        device=kind,
        rollout_device=rollout_kind,
        ranks=config.trainer.ranks,
        replicas=config.rollout.replicas,
        trainer=phases,
        rollout=rollout,
        broker=broker,
        host=host,
        problem=_device_problem(kind, phases, "the trainer", room)
        or _device_problem(rollout_kind, [rollout], "a rollout", room)
        or _host_problem(host, [(kind, fullest), (rollout_kind, rollout)], room),
        assumptions=list(_assumptions(config, trainer)),
    )


def _broker(config: Config) -> Phase:
    schedule = config.schedule
    indexed = most_indexed(schedule.window * schedule.group_size)
    return phase(
        "broker",
        MemoryPart(name="libraries", host=BROKER_HOST),
        MemoryPart(name="newest payloads", host=CACHE_BYTES),
        MemoryPart(name=f"index of {indexed:,} payloads", host=indexed * INDEX_BYTES),
    )


def _parked(config: Config, trainer: TrainerMemory, rollout: Phase) -> MemoryPart:
    """
    Host memory of one rollout's share of what sleeps: its own weights in the trainer's turn, or the trainer's state in
    its own, whichever is more.
    """
    if not config.rollout.colocated or config.trainer.device == "cpu":
        return MemoryPart(name="memory that sleeps")
    own = config.rollout.num_devices * sum(part.device for part in rollout.parts if part.name == "weights")
    others = config.trainer.ranks * trainer.asleep // config.rollout.replicas
    return MemoryPart(name="memory that sleeps", host=max(own, others), setting="rollout.colocated = false")


def check_memory(config: Config, room: Room) -> str:
    """Describe the memory that a run needs and that there is. Raises `ConfigError` if the run does not fit."""
    plan = plan_memory(config, room)
    if plan.problem:
        raise ConfigError(plan.problem)
    host = f"{format_bytes(plan.host)} of the machine's {_known(room.host)}"
    fullest = {plan.device: max(phase.device for phase in plan.trainer)}
    fullest[plan.rollout_device] = max(plan.rollout.device, fullest.get(plan.rollout_device, 0))
    fullest.pop("cpu", None)
    devices = [f"{format_bytes(need)} of each {kind} device's {_known(room.device)}" for kind, need in fullest.items()]
    return f"fits: {', '.join([*devices, host])}"


def _known(num_bytes: int | None) -> str:
    return "unknown memory" if num_bytes is None else format_bytes(num_bytes)


def _host_bytes(config: Config, rollout_kind: Kind, trainer: Sequence[Phase], rollout: Phase) -> int:
    """Memory of the trainer's machine, with all its rollouts. A checkpoint is written while the next step trains."""
    num_bytes = max(each.host for each in trainer)
    if config.trainer.device == "cpu":
        num_bytes += config.trainer.ranks * max(each.device for each in trainer)
    of_rollout = rollout.host + (rollout.device if rollout_kind == "cpu" else 0)
    return num_bytes + config.rollout.replicas * of_rollout


def _device_problem(kind: Kind, phases: Sequence[Phase], who: str, room: Room) -> str:
    fullest = max(phases, key=lambda each: each.device)
    if kind == "cpu" or room.device is None or fullest.device <= room.device:
        return ""
    need = f"{who} needs {format_bytes(fullest.device)} on each {kind} device ({fullest.name})"
    remedy = _remedy([(part, part.device) for part in fullest.parts])
    return f"{need}, but a device has {format_bytes(room.device)}; {remedy}"


def _host_problem(host: int, phases: Iterable[tuple[Kind, Phase]], room: Room) -> str:
    """
    Sentence for a run that does not fit this machine's memory; empty if it fits.

    ``phases`` are the fullest of the trainer and of a rollout, each with the kind of its devices: a ``cpu`` has host
    memory.
    """
    if room.host is None or host <= room.host:
        return ""
    remedy = _remedy(
        [(part, part.host + (part.device if kind == "cpu" else 0)) for kind, phase in phases for part in phase.parts]
    )
    return (
        f"the run needs {format_bytes(host)} of this machine's memory, but it has {format_bytes(room.host)}; {remedy}"
    )


def _remedy(parts: Sequence[tuple[MemoryPart, int]]) -> str:
    """Advice to change the setting of the largest part that a setting can reduce; each part has its bytes beside it."""
    settable = [(part, num_bytes) for part, num_bytes in parts if part.setting and num_bytes]
    if not settable:
        return "use a smaller model"
    largest, num_bytes = max(settable, key=lambda pair: pair[1])
    return f"change {largest.setting} first: {format_bytes(num_bytes)} of it are {largest.name}"


# ── what there is ───────────────────────────────────────────────────────────────────────────


def room_here(config: Config, device_memory: str = "", host_memory: str = "") -> Room:
    """
    The memory of this machine and of its devices.

    Args:
        device_memory: Memory of each device, such as ``80GB``; empty measures the devices here.
        host_memory: Memory of the machine; empty measures this one.
    """
    host = parse_bytes(host_memory, "--host-memory") if host_memory else _memory_here()
    if device_memory:
        return Room(device=parse_bytes(device_memory, "--device-memory"), host=host)
    kinds = {config.trainer.device, _rollout_kind(config)} - {"cpu"}
    found = [num_bytes for kind in sorted(kinds) if (num_bytes := _device_bytes(kind)) is not None]
    return Room(device=min(found, default=None), host=host)


def parse_bytes(text: str, option: str) -> int:
    """``80GB`` is 80 * 1000**3, ``80GiB`` 80 * 1024**3; raises `ConfigError` for anything else, naming ``option``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    if match is None or match[2] not in UNITS or not float(match[1]):
        raise ConfigError(f"{option} is {text!r}: expected a number of bytes with a unit, such as 80GB or 80GiB")
    return int(float(match[1]) * UNITS[match[2]])


def _device_bytes(kind: str) -> int | None:
    """Memory of the smallest device of a kind; None if there is none here."""
    try:
        require(kind)
    except ConfigError:
        return None
    module = torch.get_device_module(kind)
    return min(int(module.get_device_properties(i).total_memory) for i in range(module.device_count()))


def _memory_here() -> int:
    """Memory of this machine, or of the container that this process is in."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP.read_text().strip() if CGROUP.is_file() else ""
    return min(memory, int(limit)) if limit.isdecimal() else memory


# ── rollouts ────────────────────────────────────────────────────────────────────────────────


def _rollout_kind(config: Config) -> Kind:
    wanted = config.rollout.wanted_device
    return config.trainer.device if wanted == "auto" else wanted


def _rollout(config: Config, trainer: TrainerMemory, kind: Kind, room: Room) -> Phase:
    """One rollout: on each of its devices, and on its host."""
    item, entry, num_workers = ITEM_BYTES[config.model.dtype], config.rollout.entry, config.rollout.num_devices
    weights = MemoryPart(
        name="weights",
        device=item * trainer.sizes.whole // num_workers,
        setting=f"rollout.{entry.num_devices}" if entry.num_devices else 'model.dtype = "bfloat16"',
    )
    is_counted = bool(entry.memory_fraction)  # in the engine's fraction of a device
    libraries = MemoryPart(
        name="libraries",
        device=0 if kind == "cpu" or is_counted else LIBRARIES_DEVICE,
        host=num_workers * LIBRARIES_HOST,
    )
    own: list[MemoryPart] = []
    if entry.memory:
        parameter = item * trainer.sizes.parameter // num_workers
        its_room = EngineRoom(device=room.device, weights=weights.device, parameter=parameter)
        architecture = read_architecture(Path(config.model.path), "model.path", config.model.overrides)
        own = imported(entry.memory)(config, architecture.get_text_config(), its_room)
    return phase("rollout", weights, *own, *_staging(config, trainer.layout, kind, num_workers), libraries)


def _staging(config: Config, layout: Layout, kind: Kind, num_workers: int) -> list[MemoryPart]:
    """
    A version on the host, once for all workers of an engine, and two buckets on the device that receives it. Without
    staging, one bucket for every worker, in memory that the library can receive into.
    """
    largest = max(bucket.num_bytes for bucket in layout.buckets)
    is_on_device = kind != "cpu" and STAGED_ON[config.weights.backend] == kind
    if config.weights.staging == "bucket":
        where = {"device": largest} if is_on_device else {"host": num_workers * largest}
        return [MemoryPart(name="staging", setting="weights.bucket_bytes", **where)]
    setting = 'weights.staging = "bucket"' if config.rollout.entry.swaps_in_place else ""
    buckets = MemoryPart(
        name="buckets to receive", device=2 * largest if is_on_device else 0, setting="weights.bucket_bytes"
    )
    return [MemoryPart(name="staging", host=layout.num_bytes, setting=setting), buckets]


# ── words ───────────────────────────────────────────────────────────────────────────────────


def _assumptions(config: Config, trainer: TrainerMemory) -> Iterable[str]:
    yield (
        f"every prompt has {config.data.max_prompt_tokens} tokens and every "
        f"{'episode' if config.environment.is_set else 'completion'} {config.longest_written('train')}; a micro-batch "
        f"holds more of shorter ones, and attention reads the prompt for each"
    )
    if not config.rollout.entry.memory:
        yield f"what rollout.engine = {config.rollout.engine!r} takes beside its weights is not known, and not counted"
    if config.environment.is_set:
        yield "every episode is one branch; attention reads what several branches share for each of them"
    if trainer.reads_pictures:
        yield "every prompt is one picture, all of whose patches the vision tower reads"
    yield "attention is one kernel, as on a CPU and for bfloat16 on a GPU"
    yield (
        f"libraries take {format_bytes(LIBRARIES_HOST)} a process and {format_bytes(LIBRARIES_DEVICE)} a device; "
        f"fragments of an allocator, and the page cache, are not counted"
    )
    upload = 2 * trainer.layout.num_bytes
    yield f"no rollout joins with --weights spool, which takes {format_bytes(upload)} more on the trainer's first host"
