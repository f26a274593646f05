"""The trackers beside a run: child processes whose end is told, and is never the end of the run."""

import sys
from collections.abc import Awaitable, Callable

from asyncrl.actor.supervise import FINAL_CODES, Child, Exit, RestartBudget, Verdict, keep_alive
from asyncrl.config.sections import Config
from asyncrl.errors import RunFailed
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.trackers.catalogue import label


def tracker_process(name: str, directory: RunDirectory) -> Child:
    """`asyncrl track` with one tracker."""
    command = [sys.executable, "-m", "asyncrl", "track", str(directory.path), name]
    child = f"tracker-{label(name)}"
    return Child(child, command, directory.logs / f"{child}.log", {"OMP_NUM_THREADS": "1"})


async def keep_tracking(
    child: Child, config: Config, *, exited: Callable[[Exit], Awaitable[None]], is_over: Callable[[], bool]
) -> None:
    """Start it, and again whenever it dies, within the budget that every process has."""

    async def judge(code: int) -> Verdict:
        if code == 0 or is_over():
            return "leave"
        return "end" if code in FINAL_CODES else "restart"

    settings = config.supervisor
    try:
        await child.start()
        budget = RestartBudget(settings.max_restarts, settings.window_s)
        await keep_alive(child, budget, judge=judge, exited=exited, is_over=is_over)
    except RunFailed as failure:  # Not even its log can be opened.
        await exited(Exit(child.name, RunFailed.exit_code, str(failure), restarting=False))
