"""
Whether the files of a run fit together, asked before its broker goes on with them.

    ledger ── names payloads ──▶ spool
       ▲─── knows each step ──── metrics, checkpoints

A crash never parts them: each is on disk before the next may speak of it. A disk that loses what it had confirmed, a
file restored from an older copy, or one removed by hand does. Going on then would train a step again with another
batch, or wait for a trajectory that is nowhere.
"""

from asyncrl.broker.scheduler import Scheduler
from asyncrl.errors import LedgerError
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.spool.segments import Segments

REMEDY = "restore the whole run directory from a copy, or start a new run"


def require_agreement(
    directory: RunDirectory, scheduler: Scheduler, segments: Segments, *, spool: str, broker_term: int
) -> None:
    """
    Compare what is in ``directory``.

    Args:
        scheduler: After its replay.
        segments: Of the spool named ``spool``.
        broker_term: 1 if the ledger was made just now.

    Raises:
        LedgerError: They do not fit; names the files, and what one of them lacks.
    """
    known = scheduler.batches.next_step
    for steps, witness in _steps_done(directory):
        if steps > known:
            raise LedgerError(
                f"{witness} speaks of {steps} steps, but the ledger {directory.ledger} of {known}: "
                f"the end of the ledger is missing; {REMEDY}"
            )
    refs = [slot.ref for group in scheduler.groups.values() for slot in group.slots]
    missing = segments.missing(ref for ref in refs if ref is not None and ref.spool == spool)
    if missing:
        first = missing[0]
        raise LedgerError(
            f"the spool {directory.spool} lacks {len(missing)} payloads that the ledger names, the first of them "
            f"{first.length} bytes at offset {first.offset} of segment {first.segment}; {REMEDY}"
        )
    if broker_term == 1 and len(segments):
        raise LedgerError(
            f"the ledger {directory.ledger} is new, but the spool {directory.spool} holds {len(segments)} payloads: "
            f"they belong to another ledger; {REMEDY}"
        )


def _steps_done(directory: RunDirectory) -> list[tuple[int, str]]:
    """How many steps were done for certain, and what says so."""
    steps = [(line["step"] + 1, str(directory.metrics)) for line in directory.read_metrics()]
    for folder in directory.checkpoints.glob("step_*"):
        if (number := folder.name.removeprefix("step_")).isdecimal():
            steps.append((int(number), str(folder)))
    return sorted(steps, reverse=True)
