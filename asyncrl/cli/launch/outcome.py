"""The last lines of a run on the terminal: how it ended, what to look at, and where the results are."""

from collections.abc import Iterator

from asyncrl.errors import LedgerError
from asyncrl.evaluation.metrics import failed_note
from asyncrl.files.json_lines import JsonLines
from asyncrl.observe.formatting import share
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.sampled_episodes import newest_file


def time_so_far(directory: RunDirectory) -> float:
    """Seconds that a run has taken up to its last record; 0 of a new one, or one whose records are damaged."""
    try:
        last = [JsonLines(path).last() or {} for path in (directory.metrics, directory.events)]
    except LedgerError:  # The broker names the damage.
        return 0.0
    return max(float(line.get("time_s") or 0.0) for line in last)


def outcome_lines(directory: RunDirectory, summary: RunSummary, before_s: float, *, can_resume: bool) -> Iterator[str]:
    """Lines about a run that has ended; ``before_s`` is what it had taken before it was resumed, 0 if it was not."""
    accuracy = ""
    if summary.base_accuracy is not None and summary.held_out_accuracy is not None:
        accuracy = f", held-out accuracy {summary.base_accuracy:.1%} -> {summary.held_out_accuracy:.1%}"
        accuracy += failed_note(summary.held_out_failed)
    resumed = f" ({summary.wall_s - before_s:.1f} s since it was resumed)" if before_s else ""
    yield (
        f"{summary.status}: {summary.steps} of {summary.steps_planned} steps in {summary.wall_s:.1f} s{resumed}"
        f"{accuracy}, mean staleness {summary.staleness_mean:.2f} (max {summary.staleness_max}) policy versions"
    )
    yield from (f"failed      {sentence}" for sentence in summary.failures)
    if summary.groups_failed:
        dropped, issued = summary.groups_failed, summary.groups_issued
        yield (
            f"dropped     {dropped:,} of {issued:,} prompts ({share(dropped / issued)}), because a completion of each "
            f"failed for good: asyncrl dead-letters {directory.path}"
        )
    if _is_all_zero(directory, summary):
        yield f"every reward was 0: look at the samples: asyncrl samples {directory.path}"
    checkpoints = sorted(directory.checkpoints.glob("step_*"))
    yield f"dashboard   asyncrl dashboard {directory.path}"
    yield f"report      {directory.report if directory.report.exists() else 'none'}"
    if newest_file(directory.samples):
        yield f"samples     asyncrl samples {directory.path}"
    yield f"checkpoint  {checkpoints[-1] if checkpoints else 'none'}"
    if summary.status != "finished" and can_resume:
        yield f"resume      asyncrl resume {directory.path}"


def _is_all_zero(directory: RunDirectory, summary: RunSummary) -> bool:
    """True if the reward of each step was 0, and the held-out accuracy too if it was measured."""
    try:
        rewards = [line.get("reward") for line in directory.read_metrics()]
    except LedgerError:
        return False
    return bool(rewards) and all(reward == 0 for reward in rewards) and not summary.held_out_accuracy
