"""
Consistency check of a run's files, before its broker resumes.

    ledger ── refers to payloads ──▶ spool
       ▲─── contains each step of ── metrics, checkpoints

A crash keeps the files consistent, because each is durable before another refers to it. A disk that loses confirmed
writes, a file restored from an older copy, or a deleted file does not. Resuming then would train a step twice with
different batches, or wait for a lost trajectory.
"""

from asyncrl.broker.scheduler import Scheduler
from asyncrl.errors import LedgerError
from asyncrl.files.checkpoints import step_folders
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.spool.segments import Segments

REMEDY = "restore the whole run directory from a copy, or start a new run"


def require_consistent_files(
    directory: RunDirectory, scheduler: Scheduler, segments: Segments | None, *, spool: str, broker_term: int
) -> None:
    """
    Compare the ledger with the metrics, the checkpoints and the spool.

    Args:
        scheduler: Its state after replay of the ledger.
        segments: Segments of the spool named ``spool``; None if the broker hosts none. Other spools are not checked.
        broker_term: 1 if the ledger is new.

    Raises:
        LedgerError: The files are inconsistent; names the files and what is missing.
    """
    known = scheduler.training.batches.next_step
    for steps, path in _steps_done(directory):
        if steps > known:
            raise LedgerError(
                f"{path} contains {steps} steps, but the ledger {directory.ledger} contains {known}: "
                f"the end of the ledger is missing; {REMEDY}"
            )
    if segments is not None:
        _require_payloads(directory, scheduler, segments, spool=spool, broker_term=broker_term)


def _require_payloads(
    directory: RunDirectory, scheduler: Scheduler, segments: Segments, *, spool: str, broker_term: int
) -> None:
    refs = [slot.ref for group in scheduler.groups for slot in group.slots]
    missing = segments.missing(ref for ref in refs if ref is not None and ref.spool == spool)
    if missing:
        first = missing[0]
        raise LedgerError(
            f"the spool {directory.spool} lacks {len(missing)} payloads of the ledger, the first of them "
            f"{first.length} bytes at offset {first.offset} of segment {first.segment}; {REMEDY}"
        )
    if broker_term == 1 and len(segments):
        raise LedgerError(
            f"the ledger {directory.ledger} is new, but the spool {directory.spool} holds {len(segments)} payloads: "
            f"they belong to another ledger; {REMEDY}"
        )


def _steps_done(directory: RunDirectory) -> list[tuple[int, str]]:
    """Numbers of completed steps, largest first, each with the file that proves it."""
    steps = [(line["step"] + 1, str(directory.metrics)) for line in directory.read_metrics()]
    steps += [(step, str(folder)) for step, folder in step_folders(directory.checkpoints).items()]
    return sorted(steps, reverse=True)
