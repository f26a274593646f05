"""
Parser of Hydra's overrides, which are the options of verl's launch commands.

    key=1e-6   +key=[a,b]   ++key={a: 1}   ~key   key='["a", "b"]'   key=null   key=True

Values become None, bool, int, float, str, list and dict. A reference ``${key}`` to another option becomes its value;
other references stay text, and `Override.is_open` is true for them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import ConfigError

WORDS: Mapping[str, Any] = {"null": None, "none": None, "true": True, "false": False}
OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(?:=(?P<value>.*))?", re.DOTALL)
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
CLOSING = {"[": "]", "{": "}", "(": ")"}


class Override(Struct, frozen=True):
    """One option of a launch command."""

    key: str
    value: Any
    text: str
    """Argument of the command, for messages."""
    source: str = ""
    """Configuration that sets it; empty if the command itself does."""

    @property
    def is_open(self) -> bool:
        """True if the value has an interpolation that was not resolved."""
        return "${" in str(self.value)


def is_override(argument: str) -> bool:
    """True for an override, false for flags, paths and other arguments of a command."""
    match = OVERRIDE.fullmatch(argument)
    return bool(match and (match["value"] is not None or match["sign"]) and not argument.startswith("-"))


def parse_override(argument: str) -> Override:
    """Parse one override; ``~key`` has the value None. Raises `ConfigError` if the argument is no override."""
    match = OVERRIDE.fullmatch(argument)
    if not is_override(argument) or not match:
        raise ConfigError(f"{argument!r} is no option: expected KEY=VALUE, +KEY=VALUE, ++KEY=VALUE or ~KEY")
    value = None if match["sign"] == "~" else parse_value(match["value"] or "")
    return Override(match["key"].replace("/", "."), value, argument)


def given(overrides: Sequence[Override]) -> dict[str, Override]:
    """Overrides by key, with a ``{...}`` split into its keys; the last one wins if a key is given twice."""
    found: dict[str, Override] = {}
    for override in overrides:
        for key, value in _leaves(override.key, override.value):
            found.pop(key, None)
            found[key] = replace(override, key=key, value=value)
    return {key: _resolved(override, found) for key, override in found.items()}


def _resolved(override: Override, found: Mapping[str, Override]) -> Override:
    reference = REFERENCE.fullmatch(override.value) if isinstance(override.value, str) else None
    if reference and (other := found.get(reference[1])):
        return replace(override, value=other.value)
    return override


def parse_value(text: str) -> Any:
    """Parse the text after an equals sign; a list in quotes is a list too."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1].replace(f"\\{text[0]}", text[0])
        return parse_value(inner) if inner.startswith("[") and inner.endswith("]") else inner
    if text.startswith("[") and text.endswith("]"):
        return [parse_value(part) for part in _split(text[1:-1])]
    if text.startswith("{") and text.endswith("}"):
        pairs = (part.partition(":") for part in _split(text[1:-1]))
        return {str(parse_value(key)): parse_value(value) for key, _, value in pairs}
    return _scalar(text)


def _scalar(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d+(_\d+)*", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?", text):
        return float(text)
    return text


def _split(text: str) -> Iterator[str]:
    """Split at commas outside quotes and brackets."""
    start, quote, closing = 0, "", ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in CLOSING:
            closing = CLOSING[letter] + closing
        elif closing and letter == closing[0]:
            closing = closing[1:]
        elif letter == "," and not closing:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


# ── option ────────────────────────────────────────────────────────────────────────────────────
# An option of verl and its fate here, as the tables of `asyncrl.tools.verl.options` list them.
#
#     setting("data.shuffle")             mapped: one setting, whose value is converted alone
#     derived("schedule.groups_per_step") mapped: a rule of ``rules/`` computes settings from several options
#     not_needed("why")                   not needed: its purpose is met without a setting
#     replaced("what is done instead")    substituted: it is not honoured, and the run works without it
#     missing("what to do")               not supported: the run does not work without it
#     part_of("reward.x.enable")          not needed where that option is off; where it is on, it shares its fate

Fate = Literal["mapped", "not needed", "substituted", "not supported", "unknown"]
"""Treatment of an option; a launch with an option that is ``not supported`` cannot be run."""
OFF = (None, False, 0, "", "null")
"""Values that turn most options off."""


class Account(Struct, frozen=True):
    """Fate of one option or other word of a launch, with the details."""

    option: str
    """Text of it in the launch."""
    fate: Fate
    detail: str
    """Settings with their values if mapped; else the reason, or what to do."""


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
    switch: str = ""
    """Option of verl without which verl does not read this one, which shares its fate; empty if it has none."""

    def fate_of(self, value: Any) -> Fate:
        """Fate of the option with this value."""
        return "not needed" if self.fate in ("substituted", "not supported") and value in self.harmless else self.fate


def setting(key: str, convert: Callable[[Any], Any] = lambda value: value, note: str = "") -> Option:
    return Option(fate="mapped", settings=(key,), convert=convert, note=note)


def derived(*keys: str, note: str = "") -> Option:
    return Option(fate="mapped", settings=keys, note=note)


def not_needed(why: str, *, near: str = "") -> Option:
    return Option(fate="not needed", note=why, settings=(near,) if near else ())


def part_of(switch: str) -> Option:
    """An option that verl reads only with another one; where that is on, it has the other's fate."""
    return Option(fate="not needed", note=f"verl reads it only with {switch}", switch=switch)


def replaced(instead: str, *, harmless: tuple[Any, ...] = OFF, near: str = "") -> Option:
    return Option(fate="substituted", note=instead, harmless=harmless, settings=(near,) if near else ())


def missing(what_to_do: str, *, harmless: tuple[Any, ...] = OFF, near: str = "") -> Option:
    return Option(fate="not supported", note=what_to_do, harmless=harmless, settings=(near,) if near else ())


def at_least_zero(value: Any) -> Any:
    """Convert verl's -1 and null, which mean "all" or "never", to asyncrl's 0."""
    return 0 if value is None or value < 0 else value
