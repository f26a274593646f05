"""
Diagnoses a machine: checks what each role needs, and tries the collective libraries.

    machine, packages ─▶ devices that torch can use ─▶ a group of two for each library ─▶ roles

torch is imported only after its installation is checked; vLLM is never imported.
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
    INSTALL,
    INSTALL_NODE,
    NODE,
    NOT_INSTALLED,
    TRAIN,
    cpu_line,
    format_bytes,
    machine_lines,
    missing_packages,
    package_line,
    software_lines,
)
from asyncrl.weights.groups.device import ADVICE, BACKENDS, device_name, installed_version, require
from asyncrl.weights.groups.trial import trial

ROLES = ("broker", "reward", "trainer", "rollout")

TRIED_BYTES = 1 << 20
NPU_BYTES = 64 << 20
"""Enough to measure a bandwidth."""

DEADLINE_S = 60.0
"""Limit for a group and two broadcasts; HCCL may need half of it to connect."""

LOGS = {
    "gloo": "see that the loopback interface is up",
    "nccl": "run it again with NCCL_DEBUG=INFO",
    "hccl": "see HCCL's log in ~/ascend/log",
}
"""Next step if a library fails, for messages."""


async def diagnose(environment: Mapping[str, str], role: str = "", dev: Path = DEV) -> Diagnosis:
    """Run all checks for ``role``; if it is empty, any one of `ROLES` makes the machine fit."""
    lines = [*machine_lines(environment), *software_lines(torch := torch_line())]
    if torch.state == "good":
        seen = {kind: device_line(kind, dev) for kind in BACKENDS}
        lines += [line for _, line in seen.values()]
        lines += [await collective_line(kind, count, TRIED_BYTES) for kind, (count, _) in seen.items()]
    roles = [role_line(name, lines, asked=name == role) for name in ROLES]
    fit = {line.name for line in roles if line.state == "good"}
    return Diagnosis((*lines, *roles), role in fit if role else bool(fit))


async def diagnose_npu(environment: Mapping[str, str], dev: Path = DEV) -> Diagnosis:
    """Check Ascend devices only: all packages and drivers must be there, and two devices must exchange 64 MiB."""
    lines = [
        torch := torch_line(needed=True),
        package_line("torch-npu"),
        package_line("vllm-ascend"),
        _cann(environment),
    ]
    lines.append(_drivers(dev))
    if torch.state == "good":
        count, devices = device_line("npu", dev, needed=True)
        lines += [devices, await collective_line("npu", count, NPU_BYTES, needed=count > 0)]
    return Diagnosis(tuple(lines), all(line.state != "bad" for line in lines))


def torch_line(*, needed: bool = False) -> Line:
    """Import torch, which fails, for example, beside a torch_npu that does not find CANN; it needs numpy too."""
    if not (found := installed_version("torch")):
        state: State = "bad" if needed else "absent"
        return Line("installed", "torch", state, NOT_INSTALLED, f"torch is not installed: {INSTALL}")
    if missing_packages(["numpy"]):
        return Line("installed", "torch", "bad", f"{found}, without numpy", f"torch needs numpy: {INSTALL}")
    try:
        torch = import_module("torch")
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        problem = f"torch {found} is installed but cannot be imported ({reason}): {ADVICE['npu']}, or reinstall it"
        return Line("installed", "torch", "bad", f"{found}, cannot be imported", problem)
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return Line("installed", "torch", "good", f"{torch.__version__}, built {build}")


def device_line(kind: str, dev: Path = DEV, *, needed: bool = False) -> tuple[int, Line]:
    """The number of devices of a kind that torch can use, and the line about them."""
    if kind == "cpu":
        return 2, cpu_line()  # a trial needs two, and its processes share the CPU
    drivers = len(list(dev.glob(FILES[kind])))
    try:
        require(kind)
    except ConfigError as error:
        what = f"the driver has {drivers}, torch none" if drivers else "none"
        lacks = bool(drivers or needed or (kind == "npu" and installed_version("torch-npu")))
        return 0, Line("devices", kind, "bad" if lacks else "absent", what, str(error))
    count: int = import_module("torch").get_device_module(kind).device_count()
    return count, Line("devices", kind, "good", str(count))


async def collective_line(kind: str, count: int, num_bytes: int, *, needed: bool = False) -> Line:
    """Try the collective library of a kind between two processes, each with a device of its own."""
    backend = BACKENDS[kind]
    if count < 2:
        what = f"not tried: needs two {kind} devices, found {count}"
        problem = f"{backend} was not tried: it needs two {kind} devices, and torch sees {count}"
        return Line("collectives", backend, "bad" if needed else "absent", what, problem)
    devices = device_name(kind, 0), device_name(kind, 1)
    done = await trial(backend, devices, num_bytes, DEADLINE_S)
    if done.failure:
        problem = f"{backend} does not work between {' and '.join(devices)} ({done.failure}): {LOGS[backend]}"
        return Line("collectives", backend, "bad", "two processes could not exchange bytes", problem)
    speed = f"{done.seconds * 1000:.1f} ms, {format_bytes(num_bytes / done.seconds)}/s"
    what = f"{format_bytes(num_bytes)} between two processes in {speed}; checksums agree"
    return Line("collectives", backend, "good", what)


def role_line(role: str, lines: Sequence[Line], *, asked: bool = False) -> Line:
    """Conclude from the other lines if the machine can run a role."""
    working = [line.name for line in lines if line.section == "collectives" and line.state == "good"]
    lacks = list(_lacking(role, lines, working))
    if lacks:
        what = f"needs {' and '.join(lacks)}"
        return Line("roles", role, "bad" if asked else "absent", what, f"the role of a {role} {what}")
    if role not in ("trainer", "rollout"):
        return Line("roles", role, "good", "with a spool" if role == "broker" else "")
    engines = [name for name in ENGINES if installed_version(name)] if role == "rollout" else []
    return Line(
        "roles", role, "good", f"with {', '.join(['transformers', *engines])}; weights over {', '.join(working)}"
    )


def _lacking(role: str, lines: Sequence[Line], working: Sequence[str]) -> Iterator[str]:
    if absent := missing_packages(CORE):
        yield f"{', '.join(absent)} (pip install asyncrl)"
    if role not in ("trainer", "rollout"):
        if absent := missing_packages(NODE):
            yield f"{', '.join(absent)} ({INSTALL_NODE})"
    elif absent := missing_packages(TRAIN):
        yield f"{', '.join(absent)} ({INSTALL})"
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
