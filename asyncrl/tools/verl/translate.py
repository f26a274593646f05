"""
Translation of a verl launch to a run file, with an account of every option.

    Launch ─▶ conversions and rules ─▶ `Translation`: settings with comments ─▶ `to_toml`
                                       an `Account` of each option: nothing is dropped silently
"""

import difflib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from asyncrl.files.json_lines import toml_key, toml_value
from asyncrl.tools.verl.launch import Launch
from asyncrl.tools.verl.options import TABLE, option_for
from asyncrl.tools.verl.overrides import OFF, Fate, Override
from asyncrl.tools.verl.recipe import LaunchRecipe
from asyncrl.tools.verl.rules.engine import engine, episodes, evaluation, lengths, placement
from asyncrl.tools.verl.rules.objective import objective
from asyncrl.tools.verl.rules.run import checkpoints, model, optimizer, required, rewards, schedule, trackers

# ── run file ──────────────────────────────────────────────────────────────────────────────────
# Text of a run file with comments, from settings by their full keys.

SECTIONS = (
    "run", "model", "data", "schedule", "sampling", "rollout", "environment", "reward", "algorithm", "trainer",
    "critic", "weights", "evaluation", "checkpoint", "trackers",
)  # fmt: skip
WIDTH = 110


def to_toml(settings: Mapping[str, Any], comments: Mapping[str, str], head: Sequence[str] = ()) -> str:
    """
    Run file with ``settings``; a list of tables becomes one ``[[table]]`` for each.

    Args:
        comments: Sentences above settings, by key.
        head: Lines of the comment at the start of the file.
    """
    lines = [line for sentence in head for line in _comment(sentence)]
    for table, keys in _tables(settings).items():
        if all(_is_tables(settings[key]) for key in keys):
            lines.append("")
        else:
            lines += ["", f"[{_quoted(table)}]"]
        for key in keys:
            lines += _comment(comments.get(key, ""))
            if _is_tables(settings[key]):
                lines += _array(key, settings[key])
            else:
                lines.append(f"{toml_key(key.rpartition('.')[2])} = {toml_value(settings[key])}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _tables(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Keys by table, in the order of `SECTIONS`."""
    tables: dict[str, list[str]] = {}
    for key in sorted(settings, key=lambda key: (SECTIONS.index(key.partition(".")[0]), key.count("."))):
        tables.setdefault(key.rpartition(".")[0], []).append(key)
    return tables


def _comment(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, WIDTH))


def _array(key: str, tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for place, table in enumerate(tables):
        yield from [""] * (place > 0)
        yield f"[[{_quoted(key)}]]"
        yield from (f"{toml_key(name)} = {toml_value(value)}" for name, value in table.items())


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _quoted(key: str) -> str:
    return ".".join(map(toml_key, key.split(".")))


# ── translate ─────────────────────────────────────────────────────────────────────────────────

Verdict = Literal["runs", "runs with substitutions", "cannot"]
RULES: Sequence[Callable[[LaunchRecipe], None]] = (
    model,
    lengths,
    episodes,
    schedule,
    objective,
    placement,
    engine,
    optimizer,
    rewards,
    evaluation,
    checkpoints,
    trackers,
)
"""Rules in the order in which they are applied: later ones read settings of earlier ones."""
TRAINERS = {
    "fully_async": "fully_async_policy",
    "one_step_off": "one_step_off_policy",
    "synchronous": "main_ppo",
}


class Account(Struct, frozen=True):
    """Fate of one option of a launch, with the details."""

    option: str
    """Text of the option in the launch."""
    fate: Fate
    detail: str
    """Settings with their values if mapped; else the reason, or what to do."""


class Translation(Struct, frozen=True):
    """Run file, and an account of each option of the launch."""

    toml: str
    accounts: list[Account]
    missing: list[str]
    """Sentences for settings that every run needs and the launch does not give."""
    notes: list[str]
    """Sentences about the script."""

    @property
    def verdict(self) -> Verdict:
        fates = {account.fate for account in self.accounts}
        if self.missing or "not supported" in fates:
            return "cannot"
        return "runs with substitutions" if "substituted" in fates else "runs"


def translate(launch: Launch, num_rows: int | None = None) -> Translation:
    """
    Translate a launch.

    Args:
        num_rows: Rows of its training data, from which steps are computed; None if they are unknown.

    Raises:
        ConfigError: The value of an option has a wrong type.
    """
    recipe = LaunchRecipe(launch, num_rows)
    recipe.apply_conversions()
    for rule in RULES:
        rule(recipe)
    accounts = [_account(recipe, key, override) for key, override in recipe.given.items()]
    differences = [
        f"{account.fate}: {account.option}: {account.detail}"
        for account in accounts
        if account.fate in ("substituted", "not supported", "unknown")
    ]
    head = [f"From a launch of verl's {TRAINERS[launch.mode]}, by asyncrl import-verl.", *differences]
    toml = to_toml(recipe.settings, recipe.comments, head)
    return Translation(toml, accounts, required(recipe), list(launch.notes))


def _account(recipe: LaunchRecipe, key: str, override: Override) -> Account:
    if override.is_open:
        return Account(override.text, "not supported", "it refers to another value: give the value itself")
    if key in recipe.fates:
        return Account(override.text, *recipe.fates[key])
    option = option_for(key)
    if option is None:
        close = difflib.get_close_matches(key, TABLE, n=1, cutoff=0.9)
        meant = f"; did you mean {close[0]}?" if close else ""
        return Account(override.text, "unknown", f"it is in no table of verl's options here, and has no effect{meant}")
    fate = option.fate_of(override.value)
    if fate != "mapped":
        same = "it is off" if override.value in OFF else "it changes nothing here"
        return Account(override.text, fate, option.note if fate == option.fate else same)
    names = [name for name in recipe.settings if _is_of(name, option.settings, key)]
    values = [f"{name} = {toml_value(recipe.settings[name])}" for name in names]
    if not values:
        return Account(override.text, "not needed", f"{option.settings[0]} keeps its default")
    return Account(override.text, "mapped", "; ".join([*values, *([option.note] if option.note else [])]))


def _is_of(name: str, settings: Sequence[str], option: str) -> bool:
    """True if ``name`` is one of ``settings``, or the entry of ``option`` in a table of them, as vLLM's arguments."""
    inside = [name.removeprefix(f"{setting}.") for setting in settings if name.startswith(f"{setting}.")]
    return name in settings or any(option.endswith(f".{entry}") for entry in inside)
