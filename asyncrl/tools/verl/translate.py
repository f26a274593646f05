"""
Translation of a verl launch to a run file, with an account of every option.

    Launch ─▶ conversions and rules ─▶ `Translation`: settings with comments ─▶ `to_toml`
                                       an `Account` of each word: nothing is dropped silently
"""

import difflib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import toml_key, toml_value
from asyncrl.tools.verl.launch import Launch
from asyncrl.tools.verl.lookup import option_for, present
from asyncrl.tools.verl.options import TABLE
from asyncrl.tools.verl.overrides import OFF, Account, Fate
from asyncrl.tools.verl.recipe import LaunchRecipe
from asyncrl.tools.verl.rules.engine import engine, episodes, evaluation, lengths, placement
from asyncrl.tools.verl.rules.objective import objective
from asyncrl.tools.verl.rules.run import checkpoints, model, optimizer, required, rewards, schedule, trackers
from asyncrl.tools.verl.words import EXPORTED

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
SEVERITY: Sequence[Fate] = ("not needed", "mapped", "unknown", "substituted", "not supported")
"""Fates of the parts of one option, the one that counts last."""
ABSENT = object()
UNRESOLVED = "run.unresolved"
"""Setting that lists what is not supported: no run starts with it."""


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
    launch = replace(launch, overrides={present(key): override for key, override in launch.overrides.items()})
    recipe = applied(launch, num_rows)
    options = [_account(launch, recipe, key) for key in recipe.given]
    accounts = [*_merged(options), *launch.words]
    differences = [
        f"{account.fate}: {account.option}: {account.detail}"
        for account in accounts
        if account.fate in ("substituted", "unknown")
    ]
    trainer = launch.trainer.name if launch.trainer else launch.mode
    origin = f"From a launch of verl's {trainer}, read as verl of {launch.release}, by asyncrl import-verl."
    head = [origin, *differences]
    if exported := [account.option for account in launch.words if account.detail == EXPORTED]:
        head.append(f"start asyncrl with these variables: {' '.join(exported)}")
    unresolved = [f"{account.option}: {account.detail}" for account in accounts if account.fate == "not supported"]
    settings = recipe.settings | ({UNRESOLVED: unresolved} if unresolved else {})
    toml = to_toml(settings, recipe.comments, head)
    return Translation(toml, accounts, required(recipe), list(launch.notes))


def applied(launch: Launch, num_rows: int | None = None) -> LaunchRecipe:
    """Recipe of a launch after all conversions and rules."""
    recipe = LaunchRecipe(launch, num_rows)
    recipe.apply_conversions()
    for rule in RULES:
        try:
            rule(recipe)
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(f"{recipe.last_read()}: the value has a wrong type: {error}; correct it") from error
    return recipe


# ── accounts ──────────────────────────────────────────────────────────────────────────────────
# What an option decides is seen by taking it away, and by giving it another value: the settings that change are those
# that it is mapped to. So no reason can contradict the file.


def _account(launch: Launch, recipe: LaunchRecipe, key: str) -> Account:
    override, option = recipe.given[key], option_for(key)
    text = f"{override.text} ({override.source})" if override.source else override.text
    if override.is_open:
        return Account(text, "not supported", "it refers to another value: give the value itself")
    if option is None and key not in recipe.fates:
        close = difflib.get_close_matches(key, TABLE, n=1, cutoff=0.9)
        meant = f"; did you mean {close[0]}?" if close else ""
        return Account(text, "unknown", f"it is in no table of verl's options here, and has no effect{meant}")
    fate, why = _fate(recipe, key)
    if fate in ("substituted", "not supported"):
        return Account(text, fate, why)
    changed = _changed(launch, recipe, key)
    named = [name for name in recipe.settings if option and _is_of(name, option.settings, key)]
    if not _tried(override.value) and key in recipe.reads:
        changed |= set(named) if fate == "mapped" else set()
    decided = [name for name in named if name in changed] or [name for name in recipe.settings if name in changed]
    if decided:
        values = [f"{name} = {toml_value(recipe.settings[name])}" for name in decided]
        return Account(text, "mapped", "; ".join(values) + (f" ({why})" if fate == "mapped" and why else ""))
    return Account(text, "not needed", why if fate == "not needed" else _without_effect(recipe, changed, named, why))


def _fate(recipe: LaunchRecipe, key: str) -> tuple[Fate, str]:
    """Fate of an option by the rules, or by the table; an option under a switch that is on has the switch's fate."""
    if key in recipe.fates:
        return recipe.fates[key]
    option, value = option_for(key), recipe.given[key].value
    if option is None:
        return "unknown", ""
    if option.switch and recipe.get(option.switch) not in OFF:
        fate, why = _fate(recipe, option.switch)
        return fate, f"part of {option.switch}: {why}"
    fate = option.fate_of(value)
    if fate != option.fate:
        return fate, "it is off" if value in OFF else "it changes nothing here"
    return fate, option.note


def _changed(launch: Launch, recipe: LaunchRecipe, key: str) -> set[str]:
    """Settings whose values change without the option, or with another value of it."""
    override = recipe.given[key]
    others = {name: other for name, other in launch.overrides.items() if name != key}
    variants = [others]
    variants += [{**others, key: replace(override, value=value)} for value in _tried(override.value)]
    found: set[str] = set()
    for variant in variants:
        try:
            settings = applied(replace(launch, overrides=variant), recipe.num_rows).settings
        except ConfigError:
            continue  # the value itself decides whether there is a run file
        names = {*settings, *recipe.settings}
        found |= {name for name in names if settings.get(name, ABSENT) != recipe.settings.get(name, ABSENT)}
    return found


def _tried(value: Any) -> list[Any]:
    """Other values of numbers, true and false; of nothing else is there one for sure."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, 2 * value, value // 2] if value > 0 else [1]
    return []


def _without_effect(recipe: LaunchRecipe, changed: set[str], named: Sequence[str], why: str) -> str:
    """Reason for which an option that has a setting here is not needed in this launch."""
    if changed:
        return f"with this value the file needs no {sorted(changed)[0]}"
    if named:
        reason = f"{named[0]} = {toml_value(recipe.settings[named[0]])} with it and without it"
        return f"{reason}; {why}" if why else reason
    return f"it decides nothing in this launch; {why}" if why else "it decides nothing in this launch"


def _merged(accounts: Sequence[Account]) -> list[Account]:
    """One account for each text: a ``{...}`` sets several options."""
    by_text: dict[str, list[Account]] = {}
    for account in accounts:
        by_text.setdefault(account.option, []).append(account)
    merged = []
    for text, same in by_text.items():
        worst = max((account.fate for account in same), key=SEVERITY.index)
        details = dict.fromkeys(account.detail for account in same if account.fate == worst)
        merged.append(Account(text, worst, "; ".join(details)))
    return merged


def _is_of(name: str, settings: Sequence[str], option: str) -> bool:
    """True if ``name`` is one of ``settings``, or the entry of ``option`` in a table of them, as vLLM's arguments."""
    inside = [name.removeprefix(f"{setting}.") for setting in settings if name.startswith(f"{setting}.")]
    return name in settings or any(option.endswith(f".{entry}") for entry in inside)
