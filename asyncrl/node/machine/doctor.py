"""
What a machine is good for: everything a role needs is looked at, and collective libraries are tried on bytes.

    machine · installed ─▶ devices that torch can use ─▶ a group of two for each library ─▶ roles

Nothing here imports torch before it is known to be installed, and vLLM not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.node.machine.devices import DEV, FILES
from asyncrl.node.machine.diagnosis import Diagnosis, Line, State
from asyncrl.node.machine.machine import (
    CORE,
    ENGINES,
    NOT_INSTALLED,
    TRAIN,
    cpu,
    installed,
    machine,
    missing,
    package,
    size,
    software,
)
from asyncrl.weights.groups.device import ADVICE, BACKENDS, device_name, require
from asyncrl.weights.groups.trial import trial

ROLES = ("broker", "reward", "trainer", "rollout")

TRIED_BYTES = 1 << 20
NPU_BYTES = 64 << 20
"""Enough to tell a bandwidth by."""

DEADLINE_S = 60.0
"""For a group and two broadcasts; HCCL may take half of it to connect."""

LOGS = {
    "gloo": "see that the loopback interface is up",
    "nccl": "run it again with NCCL_DEBUG=INFO",
    "hccl": "HCCL's own account is in ~/ascend/log",
}
"""Where to look if a library fails."""


async def examine(environment: Mapping[str, str], role: str = "", dev: Path = DEV) -> Diagnosis:
    """
    Look at everything.

    Args:
        environment: Of this process.
        role: What the machine is to do; empty is content with any one of `ROLES`.
        dev: Where drivers put their devices.
    """
    lines = [*machine(environment), *software(torch := torch_line())]
    if torch.state == "good":
        seen = {kind: look(kind, dev) for kind in BACKENDS}
        lines += [line for _, line in seen.values()]
        lines += [await library(kind, count, TRIED_BYTES) for kind, (count, _) in seen.items()]
    roles = [role_line(name, lines, asked=name == role) for name in ROLES]
    fit = {line.name for line in roles if line.state == "good"}
    return Diagnosis((*lines, *roles), role in fit if role else bool(fit))


async def examine_npu(environment: Mapping[str, str], dev: Path = DEV) -> Diagnosis:
    """Ascend's devices alone, and thoroughly: everything must be there, and 64 MiB move between two of them."""
    lines = [torch := torch_line(needed=True), package("torch-npu"), package("vllm-ascend"), _cann(environment)]
    lines.append(_drivers(dev))
    if torch.state == "good":
        count, devices = look("npu", dev, needed=True)
        lines += [devices, await library("npu", count, NPU_BYTES, needed=count > 0)]
    return Diagnosis(tuple(lines), all(line.state != "bad" for line in lines))


def torch_line(*, needed: bool = False) -> Line:
    """Whether torch can be imported; it cannot, for one, beside a torch_npu that does not find CANN."""
    if not (its_version := installed("torch")):
        state: State = "bad" if needed else "absent"
        return Line("installed", "torch", state, NOT_INSTALLED, "torch is not installed: pip install 'asyncrl[train]'")
    try:
        torch = import_module("torch")
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        problem = (
            f"torch {its_version} is installed but cannot be imported ({reason}): {ADVICE['npu']}, or reinstall it"
        )
        return Line("installed", "torch", "bad", f"{its_version}, cannot be imported", problem)
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return Line("installed", "torch", "good", f"{torch.__version__}, built {build}")


def look(kind: str, dev: Path = DEV, *, needed: bool = False) -> tuple[int, Line]:
    """How many devices of a kind torch can use, and what is to be said of them."""
    if kind == "cpu":
        return 2, cpu()  # it holds as many processes as a trial takes
    drivers = len(list(dev.glob(FILES[kind])))
    try:
        require(kind)
    except ConfigError as error:
        in_words = f"the driver has {drivers}, torch none" if drivers else "none"
        lacks = bool(drivers or needed or (kind == "npu" and installed("torch-npu")))
        return 0, Line("devices", kind, "bad" if lacks else "absent", in_words, str(error))
    count: int = import_module("torch").get_device_module(kind).device_count()
    return count, Line("devices", kind, "good", str(count))


async def library(kind: str, count: int, num_bytes: int, *, needed: bool = False) -> Line:
    """Whether two processes, each with a device of its own, can move bytes with the library of their kind."""
    backend = BACKENDS[kind]
    if count < 2:
        what = f"not tried: {count} of the two {kind} devices that a group takes"
        problem = (
            f"{backend} was not tried: it takes two {kind} devices, and torch sees {count}; use a machine with two"
        )
        return Line("collectives", backend, "bad" if needed else "absent", what, problem)
    done = await trial(backend, (device_name(kind, 0), device_name(kind, 1)), num_bytes, DEADLINE_S)
    if done.failure:
        problem = f"{backend} does not work between {' and '.join(done.devices)} ({done.failure}): {LOGS[backend]}"
        return Line("collectives", backend, "bad", "two processes could not move bytes", problem)
    took = f"{size(num_bytes)} between two processes in {done.seconds * 1000:.1f} ms, {size(done.bytes_per_s)}/s"
    return Line("collectives", backend, "good", f"{took}; checksums agree")


def role_line(role: str, lines: Sequence[Line], *, asked: bool = False) -> Line:
    """Whether a role has all that it needs, from its imports to a way for weights."""
    working = [line.name for line in lines if line.section == "collectives" and line.state == "good"]
    lacks = list(_lacking(role, lines, working))
    if lacks:
        what = f"needs {' and '.join(lacks)}"
        return Line("roles", role, "bad" if asked else "absent", what, f"the role of a {role} {what}")
    if role not in ("trainer", "rollout"):
        return Line("roles", role, "good", "with a spool" if role == "broker" else "")
    engines = [name for name in ENGINES if installed(name)] if role == "rollout" else []
    return Line(
        "roles", role, "good", f"with {', '.join(['transformers', *engines])}; weights over {', '.join(working)}"
    )


def _lacking(role: str, lines: Sequence[Line], working: Sequence[str]) -> Iterator[str]:
    if absent := missing(CORE):
        yield f"{', '.join(absent)} (pip install asyncrl)"
    if role in ("trainer", "rollout"):
        if absent := missing(TRAIN):
            yield f"{', '.join(absent)} (pip install 'asyncrl[train]')"
        elif any(line.name == "torch" and line.state == "bad" for line in lines):
            yield "a torch that can be imported"
        elif not working:
            yield "a collective library that works"


def _cann(environment: Mapping[str, str]) -> Line:
    if home := environment.get("ASCEND_HOME_PATH"):
        return Line("installed", "CANN", "good", home)
    problem = "CANN's environment is not set (no ASCEND_HOME_PATH): install CANN and source its set_env.sh"
    return Line("installed", "CANN", "bad", "its set_env.sh was not sourced", problem)


def _drivers(dev: Path) -> Line:
    if count := len(list(dev.glob(FILES["npu"]))):
        return Line("devices", "driver", "good", f"{count} in {dev}")
    problem = (
        f"there is no {dev}/{FILES['npu']}: this machine has no Ascend NPU, or its driver is not installed, or the "
        f"container was not given the devices"
    )
    return Line("devices", "driver", "bad", f"no {dev}/{FILES['npu']}", problem)
