"""Checks, for a dry run, that the trainer and the rollouts can compute the model: by its config, not by its weights."""

import sys
from pathlib import Path

from asyncrl.cli.launch.own_process import answer, check_apart
from asyncrl.config.model.weights import check_weights
from asyncrl.config.sections import Config

CHECK_S = 300.0
"""Seconds for the whole check, most of which is the import of torch on a busy machine."""


def check_architecture(config: Config) -> None:
    """Raise `ConfigError` if the trainer or the engine cannot compute the model. Takes seconds, and needs torch."""
    too_slow = f"reading the architecture of model.path={config.model.path} took longer than {CHECK_S:g} s"
    check_apart(__name__, config, limit_s=CHECK_S, too_slow=too_slow)


def _check(config: Config) -> None:
    from asyncrl.rollout.engines.transformers.forward import check_attention
    from asyncrl.trainer.model import architecture

    model = Path(config.model.path)
    found = architecture.check_architecture(model, check_weights(model, "model.path"), "model.path")
    if config.rollout.engine == "transformers":
        check_attention(found, config.longest_request)


if __name__ == "__main__":
    sys.exit(answer(_check))
