"""
Answers to verl's names of settings, where somebody writes them in a run file or after ``--set``.

    --set actor_rollout_ref.rollout.n=8  ─▶ unknown key ...: that is verl's name; here it is 'schedule.group_size'

The names are those of `asyncrl.tools.verl.options`, which `asyncrl import-verl` reads too. docs/verl.md compares the
meanings of the settings.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from asyncrl.config import run_file
from asyncrl.config.config import Config
from asyncrl.config.suggestions import UnknownSettings
from asyncrl.tools.verl.lookup import like

IN_EVERY_RUN_FILE = "algorithm.advantage"
"""Setting by which run files are recognised: other files have no such key."""


def load_config(path: str | os.PathLike[str], overrides: run_file.Overrides = ()) -> Config:
    """Read and check a run file as `asyncrl.config.run_file.load_config` does; errors answer verl's names too."""
    with verl_names_answered():
        return run_file.load_config(path, overrides)


@contextmanager
def verl_names_answered() -> Iterator[None]:
    """Raise the errors about unknown settings that have a name of verl with a sentence about that name."""
    try:
        yield
    except UnknownSettings as error:
        meant = {name: answer(name, error.known) or words for name, words in error.meant.items()}
        raise UnknownSettings(meant, error.known) from None


def answer(name: str, known: Collection[str]) -> str | None:
    """
    Sentence for an unknown full key that is a name of verl's, or None.

    ``known`` are the full keys of all settings in the file being read; a name for any other setting has no answer.
    """
    option = like(name)
    if option is None or IN_EVERY_RUN_FILE not in known or _is_own(name, known):
        return None
    if not option.settings:
        return f"that is verl's name, and asyncrl has no such setting: {option.note}"
    here = option.settings[0]
    if here not in known:
        return None
    return f"that is verl's name; here it is {here!r}" + (f": {option.note}" if option.note else "")


def _is_own(name: str, known: Collection[str]) -> bool:
    """True if only the section is wrong: ``trainer.kl_coef`` is `algorithm.kl_coef`, and no name of verl's."""
    section, _, word = name.rpartition(".")
    return (
        (not section or section in known)
        and like(word) is like(name)
        and word in {key.rpartition(".")[2] for key in known}
    )
