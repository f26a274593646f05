"""
An option of verl and its fate here, as the tables of `asyncrl.verl.options` list them.

    setting("data.shuffle")             mapped: one setting, whose value is converted alone
    derived("schedule.groups_per_step") mapped: a rule of `asyncrl.verl.rules` computes settings from several options
    not_needed("why")                   its purpose is met without a setting
    replaced("what is done instead")    the run works without it, in another way
    missing("what to do")               the run does not work without it
"""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

Fate = Literal["mapped", "not needed", "substituted", "not supported", "unknown"]
"""``substituted`` options are not honoured, and the run works without them; ``not supported`` ones stop the import."""
OFF = (None, False, 0, "", "null")
"""Values with which most options do nothing."""


class Option(Struct, frozen=True, kw_only=True):
    """A row of a table."""

    fate: Fate
    settings: tuple[str, ...] = ()
    """asyncrl's keys that it decides, alone or with others, or is near to; the first is the one that a hint names."""
    note: str = ""
    """The difference in meaning; the reason; or what to do."""
    convert: Callable[[Any], Any] | None = None
    """Value of the setting for a value of the option; None if a rule computes it. A result of None sets nothing."""
    harmless: tuple[Any, ...] = ()
    """Values with which an option that is not honoured does nothing."""

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
    """verl's -1 and null for "all" or "never" are 0 in asyncrl."""
    return 0 if value is None or value < 0 else value
