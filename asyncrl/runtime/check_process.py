"""A check in a process of its own, because importing torch or a user's file may take seconds, a device, or for ever."""

import os
import subprocess
import sys
from collections.abc import Callable

from asyncrl.config.config import Config, from_json, to_json
from asyncrl.config.sections.models import hidden_keys
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.workers.child import OURS, module_command, why

QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def quiet_environment() -> dict[str, str]:
    """Environment of a process that imports transformers to check something: it asks no hub, and says nothing."""
    return os.environ | QUIET


def check_apart(module: str, config: Config, *arguments: str, limit_s: float, too_slow: str) -> bytes:
    """
    Run ``python -m module`` with ``arguments``, which calls `answer`, and return what it has found.

    Raises `ConfigError` with its error, or with ``too_slow`` if it takes longer than ``limit_s`` seconds.
    """
    command, environment = module_command(module, *arguments), quiet_environment() | hidden_keys(config.models)
    try:
        checked = subprocess.run(
            command, input=to_json(config), capture_output=True, timeout=limit_s, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(too_slow) from None
    if checked.returncode:
        raise ConfigError(why(checked.stderr) or f"{module} ended with exit code {checked.returncode}")
    return checked.stdout


def answer(check: Callable[[Config], bytes | None]) -> int:
    """
    Check the config on standard input; returns the exit code.

    What was found goes to standard output, and an error to standard error.
    """
    try:
        if found := check(from_json(sys.stdin.buffer.read())):
            sys.stdout.buffer.write(found)
            sys.stdout.flush()
    except AsyncrlError as error:
        sys.stderr.write(f"{OURS}{error}\n")
        return error.exit_code
    return 0
