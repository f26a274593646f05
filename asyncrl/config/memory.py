"""Memory of a run in parts, each with the setting that makes it smaller."""

from msgspec import Struct


class MemoryPart(Struct, frozen=True, kw_only=True):
    """Memory for one purpose, in bytes."""

    name: str
    device: int = 0
    """Bytes on the device of rank 0, or of one rollout."""
    host: int = 0
    """Bytes on the host of a trainer's first machine, or of one rollout."""
    setting: str = ""
    """Setting to change first to need less of it; empty if nothing helps."""


class EngineRoom(Struct, frozen=True, kw_only=True):
    """Bytes that an engine has, and those that it holds already, on each of its devices."""

    device: int | None
    """Memory of the device; None if it is not known."""
    weights: int
    """The device's part of the weights."""
    parameter: int
    """The device's part of the largest parameter."""
