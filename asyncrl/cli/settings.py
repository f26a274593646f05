"""`asyncrl config`: the settings of a run file, and what settings mean."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

import click

from asyncrl.cli.parts import report_errors
from asyncrl.config.config import Config
from asyncrl.config.meanings import VERL, Meaning, meanings, section_meanings, value_in_words
from asyncrl.config.suggestions import unknown
from asyncrl.errors import DataError
from asyncrl.terminal import echo

# ── explain ───────────────────────────────────────────────────────────────────────────────────
# Text of `asyncrl config explain`: the meanings of `asyncrl.config.meanings`, as lines for a terminal.
#
#     schedule.group_size = 8
#       integer ≥ 1
#       n, trajectories per prompt; most advantages compare them with each other.
#       verl: rollout.n

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
        raise unknown([name], Config)
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


# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one setting; repeatable. `asyncrl config explain` has all of them.",
)


@click.group()
def config() -> None:
    """Explain settings, or show those of a run file."""


@config.command()
@click.argument("config_path", metavar="CONFIG", type=PATH)
@set_option
@report_errors
def show(config_path: Path, overrides: tuple[str, ...]) -> None:
    """
    Print every setting of the run file CONFIG, and its origin.

    The origin is the file, --set, a preset, or the default. With run.epochs, run.steps is counted from data.train, and
    left out if the data is not here. Notes on settings that hardly anybody wants follow on stderr.
    """
    from asyncrl.config.checks.check import advice
    from asyncrl.config.run_file import explain as origins_of
    from asyncrl.config.run_file import load_config
    from asyncrl.data.prompts import resolve_steps

    try:
        origins = origins_of(config_path, overrides, resolve_steps)
    except DataError as error:
        echo(f"note: run.steps follows from run.epochs and data.train: {error}", err=True)
        origins = [origin for origin in origins_of(config_path, overrides) if origin.key != "run.steps"]
    width = max(len(origin.key) for origin in origins)
    for origin in origins:
        value = "unset" if origin.value is None else repr(origin.value)
        echo(f"{origin.key:<{width}}  {value:<24} {origin.source}")
    for sentence in advice(load_config(config_path, overrides)):
        echo(f"note: {sentence}", err=True)


@config.command()
@click.argument("name", metavar="[KEY|SECTION]", default="", required=False)
@report_errors
def explain(name: str) -> None:
    """
    Print what settings mean.

    Each with its default, the values that it may have, whether `asyncrl set` changes it while a run goes on, and verl's
    name for it. Without an argument the sections are listed.

    \b
    Example:
      asyncrl config explain schedule
      asyncrl config explain trainer.lr
    """

    echo("\n".join(explanation(name)))
