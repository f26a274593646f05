"""
`asyncrl doctor FILE`: diagnosis of this machine for one run, with a line for each of the run's needs.

    packages ─▶ devices of the run ─▶ its collective library ─▶ `CHECKS` ─▶ architecture, positions, memory
"""

from collections.abc import Iterator
from functools import partial

from asyncrl.cli.launch.checks.architecture import SECTION, examine, result_line
from asyncrl.cli.launch.checks.checks import CHECKS, Check, devices_of, resolved
from asyncrl.config.config import Config
from asyncrl.data.run_length import resolve_steps
from asyncrl.errors import ConfigError
from asyncrl.node.machine.diagnosis import Diagnosis, Line
from asyncrl.node.machine.doctor import TRIED_BYTES, collective_line, device_line, torch_line
from asyncrl.node.machine.machine import INSTALL, TRAIN, missing_packages, software_lines
from asyncrl.weights.groups.device import BACKENDS

PACKAGES = {"asyncrl", "torch", "transformers"}


async def diagnose_run(config: Config, device_memory: str = "", host_memory: str = "") -> Diagnosis:
    """Run every check; a failure becomes a line. An empty ``device_memory`` or ``host_memory`` is this machine's."""
    lines = list(_packages())
    can_compute = all(line.state == "good" for line in lines)
    if can_compute:
        lines += await _collectives(config)
    lines += [result_line(name, partial(_run_check, check, config)) for name, check in CHECKS.items()]
    if config.run.epochs is not None:
        lines.append(result_line("steps", partial(_steps, config)))
    if can_compute:
        lines += _architecture(config, device_memory, host_memory)
    return Diagnosis(tuple(lines), all(line.state != "bad" for line in lines))


def _packages() -> Iterator[Line]:
    for line in software_lines(torch_line(needed=True)):
        if line.name == "transformers" and (missing := missing_packages(TRAIN)):
            problem = f"{', '.join(missing)} not installed, and trainers and rollouts need it: {INSTALL}"
            yield Line(line.section, line.name, "bad", line.what, problem)
        elif line.name in PACKAGES or line.state == "bad":
            yield line


async def _collectives(config: Config) -> list[Line]:
    """Lines about the devices that the run computes on, and the collective libraries between its processes."""
    try:
        trainer, shares = devices_of(config)
    except ConfigError:
        return []  # The check of the devices has a line about this error.
    backend = resolved(config, shares).weights.backend
    ranks = {config.trainer.device} if config.trainer.ranks * config.trainer.nodes > 1 else set[str]()
    tried = ranks | {kind for kind, name in BACKENDS.items() if name == backend}
    counts, lines = {}, list[Line]()
    for kind in dict.fromkeys((*([trainer.kind] if trainer else ["cpu"]), shares[0].kind, *sorted(tried))):
        counts[kind], line = device_line(kind, needed=True)
        lines.append(line)
    return lines + [await collective_line(kind, counts[kind], TRIED_BYTES, needed=True) for kind in sorted(tried)]


def _run_check(check: Check, config: Config) -> str:
    remarks: list[str] = []
    found = check(config, remarks.append)
    return "; ".join([found, *(remark.replace("\n", " ") for remark in remarks)])


def _steps(config: Config) -> str:
    return f"{resolve_steps(config).run.steps:,} in {config.run.epochs:g} epochs"


def _architecture(config: Config, *memory: str) -> list[Line]:
    try:
        return examine(config, *memory)
    except ConfigError as error:
        return [Line(SECTION, "architecture", "bad", "cannot be checked", str(error))]
