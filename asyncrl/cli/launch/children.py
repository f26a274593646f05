"""The child processes of a run: one per role, and one per tracker."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from asyncrl.actor.supervise import FINAL_CODES, AfterExit, Child, Exit, RestartBudget, keep_alive
from asyncrl.config.config import Config
from asyncrl.errors import RunFailed
from asyncrl.messages.words import Role
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.trackers.catalogue import label


def role_process(
    role: Role, name: str, config: Config, log: Path | None, *options: str, environment: dict[str, str] | None = None
) -> Child:
    """
    The child process of one role; not started.

    ``log`` is the file for its output; None uses the standard error of this process. ``options`` go to `asyncrl-node`;
    ``environment`` has further variables, such as those that select its devices.
    """
    command = [sys.executable, "-m", "asyncrl.cli.node", "--role", role, "--name", name, *options]
    threads = {"rollout": config.rollout.threads, "trainer": config.trainer.threads}.get(role, 1)
    # OpenMP reads the number of threads when it is loaded, too early to set it from Python code.
    settings = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    return Child(name, command, log, settings | (environment or {}))


def tracker_process(name: str, directory: RunDirectory) -> Child:
    """Child process that runs `asyncrl track` for one tracker; not started."""
    command = [sys.executable, "-m", "asyncrl", "track", str(directory.path), name]
    child = f"tracker-{label(name)}"
    return Child(child, command, directory.logs / f"{child}.log", {"OMP_NUM_THREADS": "1"})


async def keep_tracking(
    child: Child, config: Config, *, exited: Callable[[Exit], Awaitable[None]], is_over: Callable[[], bool]
) -> None:
    """Start a tracker process, and restart it whenever it dies, within the restart budget of every process."""

    async def after_exit(code: int) -> AfterExit:
        if code == 0 or is_over():
            return "leave"
        return "end" if code in FINAL_CODES else "restart"

    settings = config.supervisor
    try:
        await child.start()
        budget = RestartBudget(settings.max_restarts, settings.window_s)
        await keep_alive(child, budget, after_exit=after_exit, exited=exited, is_over=is_over)
    except RunFailed as failure:  # Its log cannot be opened.
        await exited(Exit(child.name, RunFailed.exit_code, str(failure), restarting=False))
