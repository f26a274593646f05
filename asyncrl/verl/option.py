"""
An option of verl and its fate here, as the tables of `asyncrl.verl.options` list them.

    setting("data.shuffle")             mapped: one setting, whose value is converted alone
    derived("schedule.groups_per_step") mapped: a rule of `asyncrl.verl.rules` computes settings from several options
    not_needed("why")                   not needed: its purpose is met without a setting
    replaced("what is done instead")    substituted: it is not honoured, and the run works without it
    missing("what to do")               not supported: the run does not work without it
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

Fate = Literal["mapped", "not needed", "substituted", "not supported", "unknown"]
"""Treatment of an option; a launch with an option that is ``not supported`` cannot be run."""
OFF = (None, False, 0, "", "null")
"""Values that turn most options off."""


class Option(Struct, frozen=True, kw_only=True):
    """Fate of one option of verl, and the settings that it decides."""

    fate: Fate
    settings: tuple[str, ...] = ()
    """Keys of asyncrl that it decides, alone or with other options, or resembles; a hint names the first."""
    note: str = ""
    """Difference in meaning if mapped; else the reason, or what to do."""
    convert: Callable[[Any], Any] | None = None
    """Converts a value of the option to one of the setting; None if a rule computes the setting."""
    harmless: tuple[Any, ...] = ()
    """Values that make an unsupported option harmless, so that it counts as not needed."""

    def fate_of(self, value: Any) -> Fate:
        """Fate of the option with this value."""
        return "not needed" if self.fate in ("substituted", "not supported") and value in self.harmless else self.fate


def as_is(value: Any) -> Any:
    return value


def setting(key: str, convert: Callable[[Any], Any] = as_is, note: str = "") -> Option:
    return Option(fate="mapped", settings=(key,), convert=convert, note=note)


def derived(*keys: str, note: str = "") -> Option:
    return Option(fate="mapped", settings=keys, note=note)


def not_needed(why: str, *, near: str = "") -> Option:
    return Option(fate="not needed", note=why, settings=(near,) if near else ())


def replaced(instead: str, *, harmless: tuple[Any, ...] = OFF, near: str = "") -> Option:
    return Option(fate="substituted", note=instead, harmless=harmless, settings=(near,) if near else ())


def missing(what_to_do: str, *, harmless: tuple[Any, ...] = OFF, near: str = "") -> Option:
    return Option(fate="not supported", note=what_to_do, harmless=harmless, settings=(near,) if near else ())


def at_least_zero(value: Any) -> Any:
    """Convert verl's -1 and null, which mean "all" or "never", to asyncrl's 0."""
    return 0 if value is None or value < 0 else value
