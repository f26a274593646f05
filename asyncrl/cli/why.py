"""`asyncrl why`: where the time of a run went, as text."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from asyncrl.cli.terminal import aligned
from asyncrl.messages import Role
from asyncrl.observe.run_record import read_run
from asyncrl.observe.why.explanation import Explanation, explain

LEAST = 0.01
"""Shares below are summed up."""
FEW = 8
"""Nodes of a role that are listed one by one."""
WIDTH = 20
"""Characters of a bar of all of the time."""
PLURAL: dict[Role, str] = {"trainer": "trainer", "rollout": "rollouts", "reward": "reward nodes"}


def explanation_of(path: Path) -> Explanation:
    """Raises `ConfigError` if there is no run in ``path``, and `LedgerError` if it recorded no times."""
    return explain(read_run(path))


def explanation_text(name: str, found: Explanation) -> str:
    return "\n".join(_lines(name, found))


def _lines(name: str, found: Explanation) -> Iterator[str]:
    yield f"{name}: {found.steady_s:.1f} s of {found.steps} steps, without loading and the end of the run"
    for role, shares in found.roles.items():
        yield ""
        yield PLURAL[role]
        yield from _table(shares)
    yield from _nodes(found)
    yield ""
    if found.diagnosis is None:
        yield "No trainer has told what it does: nothing to conclude."
        return
    yield f"Bottleneck: {found.diagnosis.bottleneck}. {found.diagnosis.sentence}"
    if found.diagnosis.setting:
        yield f"To change it: {found.diagnosis.setting}."


def _table(shares: Mapping[str, float]) -> Iterator[str]:
    large = {activity: share for activity, share in shares.items() if share >= LEAST}
    if (rest := 1 - sum(large.values())) >= LEAST / 2:
        large["other"] = rest
    rows = [[f"{share:.0%}", "█" * max(round(share * WIDTH), 1), activity] for activity, share in large.items()]
    yield from (f"  {line}" for line in aligned(rows, right=(0,)))


def _nodes(found: Explanation) -> Iterator[str]:
    if not 1 < len(found.nodes) <= FEW:
        return
    yield ""
    yield "nodes"
    rows = [
        [name, ", ".join(f"{activity} {share:.0%}" for activity, share in list(shares.items())[:3])]
        for name, shares in sorted(found.nodes.items())
    ]
    yield from (f"  {line}" for line in aligned(rows))
