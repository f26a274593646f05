"""
Diagnoses a machine: checks what each role needs, and tries the collective libraries.

    machine, packages ─▶ devices that torch can use ─▶ a group of two for each library ─▶ roles

torch is imported only after its installation is checked; vLLM is never imported.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from asyncrl.config.config import Config
from asyncrl.config.engines import ENGINE_PACKAGES
from asyncrl.data.prompts import resolve_steps
from asyncrl.errors import ConfigError
from asyncrl.runtime.check_architecture import SECTION, examine, result_line
from asyncrl.runtime.checks import CHECKS, Check, Say, devices_of, resolved
from asyncrl.runtime.machine import (
    CORE,
    DEV,
    FILES,
    INSTALL,
    INSTALL_NODE,
    NODE,
    NOT_INSTALLED,
    TRAIN,
    CheckLine,
    DoctorReport,
    State,
    cpu_line,
    format_bytes,
    machine_lines,
    missing_packages,
    package_line,
    software_lines,
)
from asyncrl.runtime.model_files import with_local_copies
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


async def diagnose(environment: Mapping[str, str], role: str = "", dev: Path = DEV) -> DoctorReport:
    """Run all checks for ``role``; if it is empty, any one of `ROLES` makes the machine fit."""
    lines = [*machine_lines(environment), *software_lines(torch := torch_line())]
    if torch.state == "good":
        seen = {kind: device_line(kind, dev) for kind in BACKENDS}
        lines += [line for _, line in seen.values()]
        lines += [await collective_line(kind, count, TRIED_BYTES) for kind, (count, _) in seen.items()]
    roles = [role_line(name, lines, asked=name == role) for name in ROLES]
    fit = {line.name for line in roles if line.state == "good"}
    return DoctorReport((*lines, *roles), role in fit if role else bool(fit))


async def diagnose_npu(environment: Mapping[str, str], dev: Path = DEV) -> DoctorReport:
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
    return DoctorReport(tuple(lines), all(line.state != "bad" for line in lines))


def torch_line(*, needed: bool = False) -> CheckLine:
    """Import torch, which fails, for example, beside a torch_npu that does not find CANN; it needs numpy too."""
    if not (found := installed_version("torch")):
        state: State = "bad" if needed else "absent"
        return CheckLine("installed", "torch", state, NOT_INSTALLED, f"torch is not installed: {INSTALL}")
    if missing_packages(["numpy"]):
        return CheckLine("installed", "torch", "bad", f"{found}, without numpy", f"torch needs numpy: {INSTALL}")
    try:
        torch = import_module("torch")
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        problem = f"torch {found} is installed but cannot be imported ({reason}): {ADVICE['npu']}, or reinstall it"
        return CheckLine("installed", "torch", "bad", f"{found}, cannot be imported", problem)
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return CheckLine("installed", "torch", "good", f"{torch.__version__}, built {build}")


def device_line(kind: str, dev: Path = DEV, *, needed: bool = False) -> tuple[int, CheckLine]:
    """The number of devices of a kind that torch can use, and the line about them."""
    if kind == "cpu":
        return 2, cpu_line()  # a trial needs two, and its processes share the CPU
    drivers = len(list(dev.glob(FILES[kind])))
    try:
        require(kind)
    except ConfigError as error:
        what = f"the driver has {drivers}, torch none" if drivers else "none"
        lacks = bool(drivers or needed or (kind == "npu" and installed_version("torch-npu")))
        return 0, CheckLine("devices", kind, "bad" if lacks else "absent", what, str(error))
    count: int = import_module("torch").get_device_module(kind).device_count()
    return count, CheckLine("devices", kind, "good", str(count))


async def collective_line(kind: str, count: int, num_bytes: int, *, needed: bool = False) -> CheckLine:
    """Try the collective library of a kind between two processes, each with a device of its own."""
    backend = BACKENDS[kind]
    if count < 2:
        what = f"not tried: needs two {kind} devices, found {count}"
        problem = f"{backend} was not tried: it needs two {kind} devices, and torch sees {count}"
        return CheckLine("collectives", backend, "bad" if needed else "absent", what, problem)
    devices = device_name(kind, 0), device_name(kind, 1)
    done = await trial(backend, devices, num_bytes, DEADLINE_S)
    if done.failure:
        problem = f"{backend} does not work between {' and '.join(devices)} ({done.failure}): {LOGS[backend]}"
        return CheckLine("collectives", backend, "bad", "two processes could not exchange bytes", problem)
    speed = f"{done.seconds * 1000:.1f} ms, {format_bytes(num_bytes / done.seconds)}/s"
    what = f"{format_bytes(num_bytes)} between two processes in {speed}; checksums agree"
    return CheckLine("collectives", backend, "good", what)


def role_line(role: str, lines: Sequence[CheckLine], *, asked: bool = False) -> CheckLine:
    """Conclude from the other lines if the machine can run a role."""
    working = [line.name for line in lines if line.section == "collectives" and line.state == "good"]
    lacks = list(_lacking(role, lines, working))
    if lacks:
        what = f"needs {' and '.join(lacks)}"
        return CheckLine("roles", role, "bad" if asked else "absent", what, f"the role of a {role} {what}")
    if role not in ("trainer", "rollout"):
        return CheckLine("roles", role, "good", "with a spool" if role == "broker" else "")
    engines = [name for name in ENGINE_PACKAGES if installed_version(name)] if role == "rollout" else ["transformers"]
    return CheckLine("roles", role, "good", f"with {', '.join(engines)}; weights over {', '.join(working)}")


def _lacking(role: str, lines: Sequence[CheckLine], working: Sequence[str]) -> Iterator[str]:
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


def _cann(environment: Mapping[str, str]) -> CheckLine:
    if home := environment.get("ASCEND_HOME_PATH"):
        return CheckLine("installed", "CANN", "good", home)
    problem = "CANN's environment is not set (no ASCEND_HOME_PATH): install CANN and source its set_env.sh"
    return CheckLine("installed", "CANN", "bad", "its set_env.sh was not sourced", problem)


def _drivers(dev: Path) -> CheckLine:
    if count := len(list(dev.glob(FILES["npu"]))):
        return CheckLine("devices", "driver", "good", f"{count} in {dev}")
    problem = (
        f"there is no {dev}/{FILES['npu']}: this machine has no Ascend NPU, or its driver is not installed, or the "
        f"container was not given the devices"
    )
    return CheckLine("devices", "driver", "bad", f"no {dev}/{FILES['npu']}", problem)


# ── fitness ───────────────────────────────────────────────────────────────────────────────────
# `asyncrl doctor FILE`: diagnosis of this machine for one run, with a line for each of the run's needs.
#
#     packages ─▶ devices of the run ─▶ its collective library ─▶ `CHECKS` ─▶ architecture, positions, memory

PACKAGES = {"asyncrl", "torch", "transformers"}
OF_FILES = {"model", "data"}
"""Checks that read a model or data, which a hub may still have."""


async def diagnose_run(
    config: Config, device_memory: str = "", host_memory: str = "", say: Say = lambda _: None
) -> DoctorReport:
    """
    Run every check; a failure becomes a line. An empty ``device_memory`` or ``host_memory`` is this machine's, and
    ``say`` is told which commit is meant by a name of a hub.
    """
    lines = list(_packages())
    can_compute = all(line.state == "good" for line in lines)
    absent = ""
    try:
        config = with_local_copies(config, say)
    except ConfigError as error:
        absent = str(error)
    if can_compute:
        lines += await _collectives(config)
    checks = {name: check for name, check in CHECKS.items() if not (absent and name in OF_FILES)}
    lines += [result_line(name, partial(_run_check, check, config)) for name, check in checks.items()]
    if absent:
        lines.append(CheckLine(SECTION, "files", "bad", "not all are here: model and data are not checked", absent))
        return DoctorReport(tuple(lines), is_fit=False)
    if config.run.epochs is not None:
        lines.append(
            result_line("steps", lambda: f"{resolve_steps(config).run.steps:,} in {config.run.epochs:g} epochs")
        )
    if can_compute:
        try:
            lines += examine(config, device_memory, host_memory)
        except ConfigError as error:
            lines.append(CheckLine(SECTION, "architecture", "bad", "cannot be checked", str(error)))
    return DoctorReport(tuple(lines), all(line.state != "bad" for line in lines))


def _packages() -> Iterator[CheckLine]:
    for line in software_lines(torch_line(needed=True)):
        if line.name == "transformers" and (missing := missing_packages(TRAIN)):
            problem = f"{', '.join(missing)} not installed, and trainers and rollouts need it: {INSTALL}"
            yield CheckLine(line.section, line.name, "bad", line.what, problem)
        elif line.name in PACKAGES or line.state == "bad":
            yield line


async def _collectives(config: Config) -> list[CheckLine]:
    """Lines about the devices that the run computes on, and the collective libraries between its processes."""
    try:
        trainer, shares = devices_of(config)
    except ConfigError:
        return []  # The check of the devices has a line about this error.
    backend = resolved(config, shares).weights.backend
    ranks = {config.trainer.device} if config.trainer.ranks * config.trainer.nodes > 1 else set[str]()
    tried = ranks | {kind for kind, name in BACKENDS.items() if name == backend}
    counts, lines = {}, list[CheckLine]()
    for kind in dict.fromkeys((*([trainer.kind] if trainer else ["cpu"]), shares[0].kind, *sorted(tried))):
        counts[kind], line = device_line(kind, needed=True)
        lines.append(line)
    return lines + [await collective_line(kind, counts[kind], TRIED_BYTES, needed=True) for kind in sorted(tried)]


def _run_check(check: Check, config: Config) -> str:
    remarks: list[str] = []
    found = check(config, remarks.append)
    return "; ".join([found, *(remark.replace("\n", " ") for remark in remarks)])
