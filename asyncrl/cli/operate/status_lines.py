"""Text of a run's state, within 80 columns where names and sentences are of usual length."""

from collections.abc import Iterable, Iterator, Sequence

from asyncrl.cli.operate.resume import how_to_resume
from asyncrl.cli.operate.status import RunState
from asyncrl.cli.terminal import Row, aligned
from asyncrl.evaluation.metrics import failed_note
from asyncrl.messages.supervisor import NodeStatus, Status
from asyncrl.observe.formatting import count, duration, share
from asyncrl.observe.run_overview import RunOverview

COLUMNS = 80
"""Width of a terminal."""
NAMED = 4
"""Nodes that are listed by name in a sentence; further ones are counted."""
METRICS = (
    ("reward", "reward", ".3f"),
    ("accuracy", "batch accuracy", ".3f"),
    ("length_mean", "length", ".0f"),
    ("staleness_mean", "staleness", ".2f"),
    ("tokens_per_s", "tok/s", ""),
    ("kl", "kl", ".4f"),
)
"""Metrics of the last step that are shown, as many as fit: key, name, format."""
LAST_STEP = "last step"


def state_lines(state: RunState, where: str) -> list[str]:
    """State of a run, from the broker or from files; ``where`` is the run as it was named."""
    if state.live:
        return live_lines(state.live)
    if state.files:
        return [*file_lines(state.files), *_remedy(state, where)]
    return []


def live_lines(status: Status) -> list[str]:
    """State by the broker's books."""
    head = f"{status.run}: {status.state}, step {status.step} of {status.steps}"
    version = f"v{status.policy_version} live" if status.policy_version >= 0 else "no weights published yet"
    rows = [["window", _window(status)], *_metric_rows(status)]
    lines = [f"{head}, {version}, {duration(status.time_s)}", *status.notes, *aligned(rows)]
    lines += ["", *node_lines(status.nodes)]
    if still := [[f"  {node.node}", node.still] for node in status.nodes if node.still]:
        lines += ["", "without progress", *aligned(still)]
    if waiting := _waits(status.nodes):
        lines += ["", "waiting for", *aligned(waiting)]
    if status.incidents:
        rows = [[f"  {duration(one.ago_s)} ago", _times(one.count), one.sentence] for one in status.incidents]
        lines += ["", "last incidents", *aligned(rows, right=[1])]
    return lines


def file_lines(files: RunOverview) -> list[str]:
    """State by the files of the run."""
    planned = "?" if files.steps is None else files.steps
    began = f", began {duration(files.age_s)} ago" if files.age_s is not None else ""
    took = f" in {duration(files.wall_s)}" if files.wall_s is not None else ""
    lines = [f"{files.run}: {files.status}, step {files.step} of {planned}{took}{began}"]
    rows = [["cause", files.cause]] if files.cause else []
    rows += _metric_rows(files)
    rows += [["checkpoint", files.checkpoint or "none"], *(["note", note] for note in files.notes)]
    return [*lines, *aligned(rows)]


def node_lines(nodes: Sequence[NodeStatus]) -> list[str]:
    """Table of the nodes, without supervisors."""
    rows = [["node", "role", "state", "version", "leases", "in hand", "tok/s", "lag ms", "beat s"]]
    for node in nodes:
        if node.role == "supervisor":
            continue
        rows.append(
            [
                node.node,
                node.role,
                node.state,
                f"v{node.policy_version}" if node.policy_version >= 0 else "",
                str(node.leases) if node.role == "rollout" else "",
                str(node.trajectories) if node.role in ("rollout", "reward") else "",
                count(round(node.tokens_per_s)) if node.role in ("rollout", "trainer") else "",
                f"{1000 * node.lag_s:.0f}",
                f"{node.silent_s:.1f}",
            ]
        )
    return aligned(rows, right=range(3, 9)) if len(rows) > 1 else ["no node is connected"]


def _window(status: Status) -> str:
    states = ", ".join(f"{number} {state}" for state, number in status.groups.items() if number)
    return f"{status.open_groups} of {status.window} groups of {status.group_size} open{': ' if states else ''}{states}"


def _metric_rows(run: Status | RunOverview) -> list[Row]:
    metrics = run.metrics
    shown = [
        f"{name} {format(metrics[key], form) if form else count(round(metrics[key]))}"
        for key, name, form in METRICS
        if _is_number(metrics.get(key))
    ]
    while len(LAST_STEP) + 2 + len(", ".join(shown)) > COLUMNS:
        shown.pop()
    rows = [[LAST_STEP, ", ".join(shown)]] if shown else []
    if run.accuracy is not None:
        first = f"{share(run.base_accuracy)} at first, " if run.base_accuracy is not None else ""
        last = f"{share(run.accuracy)} at the last evaluation{failed_note(run.accuracy_failed)}"
        rows.append(["held out", f"{first}{last}"])
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _waits(nodes: Iterable[NodeStatus]) -> list[Row]:
    """Waiting nodes by what they wait for."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        if node.waits_for:
            names.setdefault(node.waits_for, []).append(node.node)
    return [[f"  {_listed(waiting)}", reason] for reason, waiting in names.items()]


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest


def _times(number: int) -> str:
    return f"{number} x" if number > 1 else ""


def _remedy(state: RunState, where: str) -> Iterator[str]:
    if state.files and state.files.status in ("stopped", "failed", "interrupted") and not state.is_supervised:
        yield f"resume: {how_to_resume(where)}"
