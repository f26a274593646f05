"""Checks the user's own functions, and the reward, before anything starts."""

import sys

from asyncrl.config.config import Config
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.plug_in import is_path, load_callable, load_function, settings_of
from asyncrl.reward.routing import make_group_function, make_verifier
from asyncrl.runtime.check_process import answer, check_apart
from asyncrl.runtime.machine import TRAIN, missing_packages

IMPORT_S = 120.0
"""Seconds for their imports; torch alone takes ten seconds on a busy machine."""


def check_functions(config: Config) -> None:
    """
    Import the engine, and the advantage, loss and reward functions, whose signatures are checked.

    Raises `ConfigError` if one is unusable.
    """
    algorithm = config.algorithm
    reward = config.reward
    names = [config.rollout.engine, algorithm.advantage, algorithm.loss, reward.function, reward.group]
    if not any(map(is_path, [*names, *(part.function for part in reward.parts)])):
        _check(config)
        return
    too_slow = (
        f"importing {', '.join(filter(is_path, names)) or 'reward.parts'} took longer than {IMPORT_S:g} s; move "
        f"slow work from the top level of the file into the function"
    )
    check_apart(__name__, config, limit_s=IMPORT_S, too_slow=too_slow)


def _check(config: Config) -> None:
    algorithm, setting = config.algorithm, "algorithm.loss"
    loss, options = algorithm.loss, algorithm.loss_options
    if is_path(config.rollout.engine):
        load_callable(config.rollout.engine, setting="rollout.engine")
    if not missing_packages(TRAIN):
        from asyncrl.algo.advantages import resolve_advantage

        resolve_advantage(algorithm.advantage, algorithm.advantage_options)
    if is_path(loss):
        function = load_function(loss, setting=setting)
        known = Algorithm.__struct_fields__
        settings_of(function, takes="tokens", known=known, path=loss, setting=setting, options=options)
    make_verifier(config.reward)
    make_group_function(config.reward)


if __name__ == "__main__":
    sys.exit(answer(_check))
