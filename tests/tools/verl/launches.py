"""Launches for the tests of the translation, of options that the test names."""

import tomllib
from typing import Any

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.tools.verl.launch import Launch
from asyncrl.tools.verl.overrides import Account, given, parse_override
from asyncrl.tools.verl.trainers import Mode
from asyncrl.tools.verl.translate import Translation, applied, translate

NEEDED = ("actor_rollout_ref.model.path=models/base", "data.train_files=train.parquet", "algorithm.adv_estimator=grpo")


def launch(mode: Mode, *options: str, is_megatron: bool = False) -> Launch:
    """A launch with what every run needs, and ``options``."""
    group = () if any(".rollout.n=" in option for option in options) else ("actor_rollout_ref.rollout.n=4",)
    return Launch(mode, given([parse_override(option) for option in (*NEEDED, *group, *options)]), is_megatron)


def translated(mode: Mode, *options: str, num_rows: int | None = None, is_megatron: bool = False) -> Translation:
    return translate(launch(mode, *options, is_megatron=is_megatron), num_rows)


def settings(mode: Mode, *options: str, num_rows: int | None = None, is_megatron: bool = False) -> dict[str, Any]:
    """Settings of the translation by their full keys."""
    return applied(launch(mode, *options, is_megatron=is_megatron), num_rows).settings


def fate(mode: Mode, option: str, *others: str, is_megatron: bool = False) -> tuple[str, str]:
    """Fate and detail of ``option``."""
    accounts = translated(mode, *others, option, is_megatron=is_megatron).accounts
    return next((account.fate, account.detail) for account in accounts if account.option == option)


def fates(translation: Translation) -> dict[str, Account]:
    """Accounts by the text of their option."""
    return {account.option: account for account in translation.accounts}


def raw(translation: Translation) -> dict[str, Any]:
    return tomllib.loads(translation.toml)


def checked(translation: Translation) -> Config:
    """Configuration of a run file that passes the check of settings once what is not supported is decided."""
    written = raw(translation)
    written["run"].pop("unresolved", None)
    return decode(written)
