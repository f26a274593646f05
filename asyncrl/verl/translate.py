"""
Translation of a verl launch to a run file, with an account of every option.

    Launch ─▶ conversions and rules ─▶ `Translation`: settings with comments ─▶ `to_toml`
                                       an `Account` of each option: nothing is dropped silently
"""

import difflib
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from asyncrl.files.toml_text import toml_value
from asyncrl.verl.launch import Launch
from asyncrl.verl.option import OFF, Fate
from asyncrl.verl.options.lookup import TABLE, of
from asyncrl.verl.overrides import Override
from asyncrl.verl.recipe import Recipe
from asyncrl.verl.rules.engine import engine, evaluation, lengths
from asyncrl.verl.rules.episodes import episodes
from asyncrl.verl.rules.objective import objective
from asyncrl.verl.rules.placement import placement
from asyncrl.verl.rules.run import checkpoints, model, optimizer, required, rewards, trackers
from asyncrl.verl.rules.schedule import schedule
from asyncrl.verl.run_file import to_toml

Verdict = Literal["runs", "runs with substitutions", "cannot"]
RULES: Sequence[Callable[[Recipe], None]] = (
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
    recipe = Recipe(launch, num_rows)
    recipe.apply_conversions()
    for rule in RULES:
        rule(recipe)
    accounts = [_account(recipe, key, override) for key, override in recipe.given.items()]
    head = [f"From a launch of verl's {TRAINERS[launch.mode]}, by asyncrl import-verl.", *_differences(accounts)]
    toml = to_toml(recipe.settings, recipe.comments, head)
    return Translation(toml, accounts, required(recipe), list(launch.notes))


def _differences(accounts: Sequence[Account]) -> list[str]:
    """Sentences for the head of the run file, about each option that is not honoured."""
    return [
        f"{account.fate}: {account.option}: {account.detail}"
        for account in accounts
        if account.fate in ("substituted", "not supported", "unknown")
    ]


def _account(recipe: Recipe, key: str, override: Override) -> Account:
    if override.is_open:
        return Account(override.text, "not supported", "it refers to another value: give the value itself")
    if key in recipe.fates:
        return Account(override.text, *recipe.fates[key])
    option = of(key)
    if option is None:
        return Account(
            override.text, "unknown", f"it is in no table of verl's options here, and has no effect{_meant(key)}"
        )
    fate = option.fate_of(override.value)
    if fate != "mapped":
        same = "it is off" if override.value in OFF else "it changes nothing here"
        return Account(override.text, fate, option.note if fate == option.fate else same)
    names = [name for name in recipe.settings if _is_of(name, option.settings, key)]
    values = [f"{name} = {toml_value(recipe.settings[name])}" for name in names]
    if not values:
        return Account(override.text, "not needed", f"{option.settings[0]} keeps its default")
    return Account(override.text, "mapped", "; ".join([*values, *([option.note] if option.note else [])]))


def _meant(key: str) -> str:
    """Nearest option that has a row, as a question; empty if none is near."""
    close = difflib.get_close_matches(key, TABLE, n=1, cutoff=0.9)
    return f"; did you mean {close[0]}?" if close else ""


def _is_of(name: str, settings: Sequence[str], option: str) -> bool:
    """True if ``name`` is one of ``settings``, or the entry of ``option`` in a table of them, as vLLM's arguments."""
    inside = [name.removeprefix(f"{setting}.") for setting in settings if name.startswith(f"{setting}.")]
    return name in settings or any(option.endswith(f".{entry}") for entry in inside)
