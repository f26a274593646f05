"""Settings of models that others serve: judges, and users that a model plays."""

import os
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from asyncrl.config.sections.section import Count, NonNegative, Positive, Section
from asyncrl.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
INSTALL = "pip install 'asyncrl[models]'"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ServedModel(Section, frozen=True, kw_only=True):
    """
    Models that others serve, each in a table ``[models.NAME]``: judges, and users that a model plays. Environments,
    agent programs, tools and rewards ask them by their names.

    Each node that runs such code keeps answers, limits requests and repeats them; limits are those of one node.
    """

    url: str
    """Address of an OpenAI-compatible server, such as ``http://10.0.0.5:8000/v1``."""
    model: str = ""
    """Name of the model at its server; empty: the name of the table."""
    key_env: str = ""
    """
    Variable that holds the key, in the environment of every rollout and reward node whose code asks the model; empty
    sends none. The code itself gets another key, which is of no use elsewhere.
    """
    cache: Literal["greedy", "all", "none"] = "greedy"
    """
    Answers that are kept, and given again for an equal request: those asked for with ``temperature = 0``, all, or none.
    Equal requests at one time are then one request.
    """
    cache_bytes: Count = 256 << 20
    """Size of the answers that a node keeps, in the run directory if that is on its machine; the oldest go first."""
    requests_per_s: NonNegative = 0.0
    """Most requests a second, repeated ones included; 0: no limit."""
    at_once: Count = 64
    """Most requests at one time; others wait."""
    timeout_s: Positive = 30.0
    """Seconds for the server to answer one attempt."""
    deadline_s: Positive = 50.0
    """
    Seconds for a request, with the wait for its turn and all attempts: status 408, 429, 5xx and lost connections are
    tried again until then. Below ``environment.call_s`` and ``reward.timeout_s``.
    """

    def check(self, name: str) -> None:
        """Raise `ConfigError` for a name, an address or a variable that is none."""
        where = f"models.{name}"
        if not NAME.fullmatch(name):
            raise ConfigError(f"{where}: expected a name of letters, digits, - and _, at most 64 in all")
        if problem := _problem_of(self.url):
            raise ConfigError(f"{where}.url is {self.url!r}, {problem}: expected http://HOST:PORT/v1 or https://...")
        if self.key_env and not VARIABLE.fullmatch(self.key_env):  # it may be the key: it is not shown
            raise ConfigError(
                f"{where}.key_env is no name of an environment variable: name the variable that holds the key, which "
                f"itself belongs in no run file"
            )
        if self.timeout_s > self.deadline_s:
            raise ConfigError(
                f"{where}.timeout_s is {self.timeout_s:g} for one attempt, more than deadline_s = {self.deadline_s:g} "
                f"for all; lower it, or raise deadline_s"
            )


def hidden_keys(models: Mapping[str, ServedModel]) -> dict[str, str]:
    """Variables that hide the keys of the servers from a process that would inherit them."""
    return {model.key_env: "" for model in models.values() if model.key_env}


def key_of(name: str, settings: ServedModel) -> str:
    """The key of a model's server, from its variable; raises `ConfigError` if that is not set."""
    if not settings.key_env:
        return ""
    key = os.environ.get(settings.key_env, "").strip()
    if not key:
        raise ConfigError(
            f"models.{name}.key_env names the variable {settings.key_env}, which is not set in this process: export it "
            f"on each machine whose code asks the model"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"models.{name}: the key in {settings.key_env} has characters that no header may have")
    return key


def _problem_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "no address"
    if parts.username is not None:
        return "with a user in it, who belongs in no run file"
    return "with a query or a fragment" if parts.query or parts.fragment else ""
