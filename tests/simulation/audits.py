"""The audit of a run, with the simulated disk in place of the run directory."""

from collections.abc import Iterator, Sequence

from asyncrl.broker.audit.run_rules import (
    Line,
    ManifestFacts,
    checkpoint_problems,
    commit_problems,
    lost_records,
    metrics_problems,
    unrecorded_problems,
)
from asyncrl.broker.audit.sample_rules import SpoolRules, line_problems
from asyncrl.broker.ledger.audit import examine
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.cli.inspect import stored_payload
from asyncrl.config.config import Config
from tests.simulation.damage import Damage
from tests.simulation.disk import Disk
from tests.simulation.ledger import SimLedger
from tests.simulation.segments import SpoolFolder

SPOOL = "spool"


def audit_problems(
    config: Config, disk: Disk, lines: Sequence[Line], *, was_damaged: bool, damage: Damage
) -> Iterator[str]:
    """
    Sentences about everything that does not fit together, at the end of a schedule.

    Args:
        lines: Metrics of each step.
        was_damaged: A checkpoint was removed as damaged, so that the newest one may be missing.
        damage: Damaged payloads, which reward nodes may have let pass.
    """
    accounts, state = examine(disk.ledger.records, config.schedule, config.greedy_per_group)
    yield from accounts.problems
    yield from metrics_problems(state, lines)
    yield from line_problems(state, lines)
    yield from unrecorded_problems(state, lines)
    yield from lost_records(state, disk.ledger.broker_term, lines, [], {})
    manifests = {
        f"step_{kept.step:06d}": ManifestFacts(
            step=kept.step, policy_version=kept.policy_version, run_id=SimLedger.run_id
        )
        for kept in disk.checkpoints.all()
    }
    yield from checkpoint_problems(state, SimLedger.run_id, manifests, config.schedule.steps_per_publish)
    if not was_damaged:
        yield from commit_problems(state, list(manifests))
    yield from _spool_problems(state, disk.spool, damage)


def _spool_problems(state: LedgerState, folder: SpoolFolder, damage: Damage) -> Iterator[str]:
    rules = SpoolRules(state, SPOOL, {segment for segment, _ in folder.payloads})
    for entry, place, payload in folder.payloads.values():
        problems = list(rules.add(stored_payload(f"segment_{place.segment:06d}.seg", entry, place, payload)))
        if not damage.is_known(place.crc32):
            yield from problems
    yield from rules.missing()
