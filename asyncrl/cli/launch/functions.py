"""
Checks the user's own functions, and the reward, before anything starts.

Runs in a process of its own, because importing a user's file may do anything: load a model, use a device, or hang.
"""

import subprocess
import sys

from asyncrl.actor.supervise import OURS, why
from asyncrl.algo.advantages.resolve import resolve_advantage
from asyncrl.config.sections import Config, from_json, to_json
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import is_path, load_function
from asyncrl.reward.blend import make_verifier

IMPORT_S = 120.0
"""Seconds for their imports; torch alone takes ten seconds on a busy machine."""


def check_functions(config: Config) -> None:
    """Import the advantage, loss and reward functions and check their signatures; `ConfigError` if one is unusable."""
    names = [config.algorithm.advantage, config.algorithm.loss, config.reward.function]
    if not any(map(is_path, [*names, *(part.function for part in config.reward.parts)])):
        _check(config)
        return
    command = [sys.executable, "-m", "asyncrl.cli.launch.functions"]
    try:
        checked = subprocess.run(command, input=to_json(config), capture_output=True, timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"importing {', '.join(filter(is_path, names)) or 'reward.parts'} took longer than {IMPORT_S:g} s; move "
            f"slow work from the top level of the file into the function"
        ) from None
    if checked.returncode:
        raise ConfigError(why(checked.stderr) or f"checking functions ended with exit code {checked.returncode}")


def _check(config: Config) -> None:
    resolve_advantage(config.algorithm.advantage)
    if is_path(config.algorithm.loss):
        load_function(config.algorithm.loss, setting="algorithm.loss")
    make_verifier(config.reward)


def main() -> int:
    """Check the config on standard input; returns the exit code, and prints the error to standard error."""
    try:
        _check(from_json(sys.stdin.buffer.read()))
    except AsyncrlError as error:
        sys.stderr.write(f"{OURS}{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
