"""How a role becomes a child process: the command, and what must be in its environment before any of our code runs."""

import sys
from pathlib import Path

from asyncrl.actor.supervise import Child
from asyncrl.config.sections import Config
from asyncrl.messages import Role


def role_process(
    role: Role, name: str, config: Config, log: Path | None, *options: str, devices: dict[str, str] | None = None
) -> Child:
    """
    A child that plays one role.

    Args:
        log: Where its output goes; None for the standard error of this process.
        options: Further ones of `asyncrl-node`.
        devices: Variables that say which devices it may use.
    """
    command = [sys.executable, "-m", "asyncrl.cli.node", "--role", role, "--name", name, *options]
    threads = {"rollout": config.rollout.threads, "trainer": config.trainer.threads}.get(role, 1)
    # Read by OpenMP when it starts, before any of our code could set the number.
    environment = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    return Child(name, command, log, environment | (devices or {}))
