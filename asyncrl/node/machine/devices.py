"""
The accelerators of a machine, and which replica gets which. Nothing here loads torch: a process that starts others must
not hold a device itself.

    find ─▶ Devices("cuda", "0" "1" "2" "3") ─share(replicas=2, each=2)─▶ "0" "1" │ "2" "3" ─▶ environment of each

Devices are named as their vendor's variable names them, CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES: by number or
by UUID. What such a variable leaves out does not exist for us: somebody else may have been given it.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Literal

from msgspec import Struct

from asyncrl.config.sections import Rollout, Trainer
from asyncrl.errors import ConfigError
from asyncrl.weights.groups import device

Kind = Literal["cpu", "cuda", "npu"]

FILES = {"cuda": "nvidia[0-9]*", "npu": "davinci[0-9]*"}
"""What the drivers put into /dev, one for each device. The order is that of ``auto``."""
DEV = Path("/dev")


class Devices(Struct, frozen=True):
    """Devices of one kind. A machine without accelerators has kind ``cpu`` and none."""

    kind: Kind
    ids: tuple[str, ...] = ()
    source: str = "it has no accelerator"
    """How we know, for error messages."""

    def environment(self) -> dict[str, str]:
        """What makes a process see these devices and no others; on the CPU, none."""
        if self.kind == "cpu":
            return dict.fromkeys(device.VISIBLE.values(), "")
        return device.environment(self.kind, self.ids)

    def __str__(self) -> str:
        return f"{self.kind} {','.join(self.ids)}" if self.ids else self.kind


def find(wanted: Literal["auto"] | Kind, environment: Mapping[str, str], dev: Path = DEV) -> Devices:
    """
    The devices this process may use.

    Args:
        wanted: Their kind. ``auto`` takes the first there is of NVIDIA's, Ascend's, and the CPU.
        environment: Of the process.

    Raises:
        ConfigError: The environment names a device twice.
    """
    if wanted == "cpu":
        return Devices("cpu", source="rollout.device is 'cpu'")
    if wanted != "auto":
        return _visible(wanted, environment, dev)
    found = [_visible(kind, environment, dev) for kind in ("cuda", "npu")]
    return next((devices for devices in found if devices.ids), Devices("cpu"))


def chosen(devices: Devices, ids: Sequence[str]) -> Devices:
    """
    Only those of ``devices`` that ``ids`` names.

    Raises:
        ConfigError: One of them is not there, or is named twice.
    """
    _refuse_twice(ids, "--devices")
    for name in ids:
        if name not in devices.ids:
            raise ConfigError(f"--devices names {name!r}, but there are {_listed(devices)} ({devices.source})")
    return Devices(devices.kind, tuple(ids), "--devices")


def apart(devices: Devices, trainer: Trainer) -> tuple[Devices | None, Devices]:
    """
    The trainer's devices, the first there are, and what is left for rollouts. None: it computes on the CPU.

    Args:
        devices: What rollouts could use, were they alone.

    Raises:
        ConfigError: There are too few; says both numbers.
    """
    if trainer.device == "cpu":
        return None, devices
    found = devices.ids if devices.kind == trainer.device else ()
    if trainer.ranks > len(found):
        raise ConfigError(
            f"trainer.device = {trainer.device!r} with trainer.ranks = {trainer.ranks} needs "
            f"{_number(trainer.ranks)}, but this machine has {len(found)} ({devices.source})"
        )
    mine, left = found[: trainer.ranks], found[trainer.ranks :]
    source = f"{devices.source}, less {_number(len(mine))} for the trainer"
    return Devices(devices.kind, mine, devices.source), Devices(devices.kind, left, source)


def share(devices: Devices, rollout: Rollout, replicas: int | None, asked: str = "rollout.replicas") -> list[Devices]:
    """
    Who gets which: disjoint, in order.

    Args:
        rollout: Says how many devices one replica needs.
        replicas: How many there are to be; None for as many as there are devices for, on a CPU one.
        asked: What said so.

    Raises:
        ConfigError: They need more devices than there are; says both numbers.
    """
    each = needed(devices, rollout)
    if replicas is None:
        replicas = max(len(devices.ids) // each, 1) if each else 1
    if replicas * each > len(devices.ids):
        raise ConfigError(
            f"{asked} = {replicas} with {_why(rollout)} needs {_number(replicas * each)}, but this machine has "
            f"{len(devices.ids)} ({devices.source})"
        )
    shares = (devices.ids[i * each : (i + 1) * each] for i in range(replicas))
    return [Devices(devices.kind, ids, devices.source) for ids in shares]


def require(devices: Devices, rollout: Rollout) -> None:
    """
    Refuse to be one replica with too few devices.

    Raises:
        ConfigError: Says how many are needed, and how many there are.
    """
    if (each := needed(devices, rollout)) > len(devices.ids):
        raise ConfigError(
            f"{_why(rollout)} needs {_number(each)}, but this process may use {len(devices.ids)} ({devices.source})"
        )


def needed(devices: Devices, rollout: Rollout) -> int:
    """Devices of one replica. On a CPU none: there its processes share the cores."""
    on_devices = rollout.engine == "vllm" and devices.kind != "cpu"
    return rollout.vllm.tensor_parallel_size if on_devices else 0


def _visible(kind: Literal["cuda", "npu"], environment: Mapping[str, str], dev: Path) -> Devices:
    variable = device.VISIBLE[kind]
    if variable in environment:
        # As CUDA reads it: what follows an empty or negative entry does not count.
        named = (name.strip() for name in environment[variable].split(","))
        ids = tuple(takewhile(lambda name: name and not name.startswith("-"), named))
        _refuse_twice(ids, variable)
        return Devices(kind, ids, f"{variable}={environment[variable]}")
    # Numbered anew: of a container that was given only /dev/nvidia3, it is device 0.
    count = len(list(dev.glob(FILES[kind])))
    return Devices(kind, tuple(str(i) for i in range(count)), f"by {dev}/{FILES[kind]}")


def _refuse_twice(ids: Sequence[str], where: str) -> None:
    for name in ids:
        if ids.count(name) > 1:
            raise ConfigError(f"{where} names device {name} twice")


def _why(rollout: Rollout) -> str:
    return f"rollout.vllm.tensor_parallel_size = {rollout.vllm.tensor_parallel_size}"


def _number(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def _listed(devices: Devices) -> str:
    return ", ".join(devices.ids) or "none"
