"""
Looks at functions of a person's own before anything starts, and at what a reward needs.

In a process of its own, because importing such a file may do anything: load a model, take a device, never come back.
"""

import subprocess
import sys

from asyncrl.actor.supervise import OURS, why
from asyncrl.algo.advantages.table import resolve_advantage
from asyncrl.config.sections import Config, from_json, to_json
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import is_path, load_function
from asyncrl.reward.blend import verifier_of

IMPORT_S = 120.0
"""For their imports; torch alone takes ten seconds on a busy machine."""


def check_functions(config: Config) -> None:
    """
    Find them, import them, and see whether they can be called as they will be.

    Raises:
        ConfigError: One cannot; says which, and why.
    """
    names = [config.algorithm.advantage, config.algorithm.loss, config.reward.function]
    if not any(map(is_path, [*names, *(part.function for part in config.reward.parts)])):
        _look(config)
        return
    command = [sys.executable, "-m", "asyncrl.cli.launch.functions"]
    try:
        looked = subprocess.run(command, input=to_json(config), capture_output=True, timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"importing {', '.join(filter(is_path, names)) or 'reward.parts'} took longer than {IMPORT_S:g} s; what "
            f"takes so long belongs into the function, not beside it"
        ) from None
    if looked.returncode:
        raise ConfigError(why(looked.stderr) or f"looking at functions ended with exit code {looked.returncode}")


def _look(config: Config) -> None:
    resolve_advantage(config.algorithm.advantage)
    if is_path(config.algorithm.loss):
        load_function(config.algorithm.loss, setting="algorithm.loss")
    verifier_of(config.reward)


def main() -> int:
    """The exit code; why it is not 0 stands on standard error."""
    try:
        _look(from_json(sys.stdin.buffer.read()))
    except AsyncrlError as error:
        sys.stderr.write(f"{OURS}{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
