"""
Other names of settings: former names of asyncrl's settings, and verl's names.

    --set schedule.max_lag=1             ─▶ unknown key ...: its name is 'schedule.max_staleness'
    --set actor_rollout_ref.rollout.n=8  ─▶ unknown key ...: that is verl's name; here it is 'schedule.group_size'

verl's names are those in the tables of asyncrl/verl/options, which `asyncrl import-verl` reads too. docs/verl.md
compares the meanings of the settings.
"""

from collections.abc import Container, Mapping

from asyncrl.verl.options.lookup import like

FORMER: Mapping[str, str] = {"schedule.max_lag": "schedule.max_staleness"}
"""Former full keys and the present ones."""
REMOVED: Mapping[str, str] = {"model.scratch": "a command makes toy models: asyncrl toy --help"}
"""Answer to each full key of a removed setting or section."""
IN_EVERY_RUN_FILE = "algorithm.advantage"
"""Setting by which run files are recognised: other files have no such key."""


def answer(name: str, known: Container[str]) -> str | None:
    """
    Sentence for an unknown full key that is another name of a setting, or None.

    Args:
        known: Full keys of all settings in the file being read; a name for any other setting has no answer.
    """
    for removed, sentence in REMOVED.items():
        if name == removed or name.startswith(f"{removed}."):
            return sentence
    if (present := FORMER.get(name)) in known:
        return f"its name is {present!r}"
    return _from_verl(name, known)


def from_verl(name: str) -> str | None:
    """Setting of asyncrl for verl's ``name``, whole or shortened; None if there is none."""
    option = like(name)
    return option.settings[0] if option and option.settings else None


def _from_verl(name: str, known: Container[str]) -> str | None:
    option = like(name)
    if option is None or IN_EVERY_RUN_FILE not in known:
        return None
    if not option.settings:
        return f"that is verl's name, and asyncrl has no such setting: {option.note}"
    here = option.settings[0]
    if here not in known:
        return None
    return f"that is verl's name; here it is {here!r}" + (f": {option.note}" if option.note else "")
