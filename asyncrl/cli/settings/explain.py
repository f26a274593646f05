"""
Text of `asyncrl config explain`: the meanings of `asyncrl.config.meanings`, as lines for a terminal.

    schedule.group_size = 8
      integer ≥ 1
      n, trajectories per prompt; most advantages compare them with each other.
      verl: rollout.n
"""

from collections.abc import Iterator
from textwrap import wrap

from asyncrl.config.config import Config
from asyncrl.config.meanings import VERL, Meaning, meanings, section_meanings
from asyncrl.config.suggestions import unknown
from asyncrl.config.words import value_in_words
from asyncrl.errors import ConfigError

WIDTH = 100
INDENT = "  "


def explanation(name: str) -> list[str]:
    """
    Lines about a setting, about a section with its settings, or, without a name, about all sections.

    Raises:
        ConfigError: ``name`` is neither a setting nor a section.
    """
    sections = section_meanings()
    if not name:
        return list(_overview(sections))
    settings = [each for meaning in meanings().values() for each in (meaning, *meaning.items)]
    found = [meaning for meaning in settings if name in (meaning.key, meaning.section)]
    inner = [section for section in sections if section.startswith(f"{name}.")]
    inner += [meaning.key for meaning in found if meaning.items and meaning.key != name]
    if not found and not inner:
        raise ConfigError(unknown(name, Config))
    lines = [f"[{name}]", *_wrapped(sections[name], ""), ""] if name in sections else []
    for meaning in found:
        lines += [*_lines(meaning), ""]
    lines += [f"see also: asyncrl config explain {section}" for section in inner]
    return lines if inner else lines[:-1]


def _overview(sections: dict[str, str]) -> Iterator[str]:
    width = max(map(len, sections)) + 2
    for section, text in sections.items():
        first, *rest = wrap(_plain(text.partition("\n")[0]), WIDTH - width - 2)
        yield f"{f'[{section}]':<{width}}  {first}"
        yield from (f"{'':<{width}}  {line}" for line in rest)
    yield ""
    yield "asyncrl config explain SECTION explains its settings, asyncrl config explain KEY one of them"


def _lines(meaning: Meaning) -> Iterator[str]:
    yield f"{meaning.key}, required" if meaning.is_required else f"{meaning.key} = {value_in_words(meaning.default)}"
    yield from _wrapped(meaning.kind + ("; live" if meaning.is_live else ""))
    yield from _wrapped(VERL.sub("", meaning.text))
    if meaning.verl:
        yield f"{INDENT}verl: {meaning.verl}"


def _wrapped(text: str, indent: str = INDENT) -> Iterator[str]:
    for paragraph in text.splitlines():
        yield from wrap(_plain(paragraph), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _plain(text: str) -> str:
    return text.replace("``", "")
