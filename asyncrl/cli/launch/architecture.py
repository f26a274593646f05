"""Checks, for a dry run, that trainer and rollouts can compute the model, and have the memory: by its config alone."""

import sys
from pathlib import Path

from asyncrl.cli.launch.own_process import answer, check_apart
from asyncrl.config.model.weights import check_weights
from asyncrl.config.sections import Config

CHECK_S = 300.0
"""Seconds for the whole check, most of which is the import of torch on a busy machine."""


def check_architecture(config: Config, device_memory: str = "", host_memory: str = "") -> None:
    """
    Raise `ConfigError` if the trainer or the engine cannot compute the model, or have not the memory for it.

    Takes seconds, and needs torch. ``device_memory`` is that of each device, such as ``80GB``, in place of that of the
    devices here, and ``host_memory`` that of the machine.
    """
    too_slow = f"reading the architecture of model.path={config.model.path} took longer than {CHECK_S:g} s"
    check_apart(__name__, config, device_memory, host_memory, limit_s=CHECK_S, too_slow=too_slow)


def _check(config: Config) -> None:
    from asyncrl.node.memory import check_memory, room_here
    from asyncrl.rollout.engines.transformers.forward import check_attention
    from asyncrl.trainer.model import architecture

    model = Path(config.model.path)
    found = architecture.check_architecture(
        model, check_weights(model, "model.path"), "model.path", config.model.overrides
    )
    if config.rollout.engine == "transformers":
        check_attention(found, config.longest_request)
    check_memory(config, room_here(config, *sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(answer(_check))
