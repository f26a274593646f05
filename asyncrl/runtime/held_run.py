"""
The run directory of a broker: created or continued by the same command, checked first, and used by one broker at a
time.

    lock ─▶ no config.toml: a new run, with a secret ─▶ serve
         └▶ config.toml: the run continues, unless it is complete, or refused: events.jsonl has the cause
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.config.live import changed
from asyncrl.config.run_file import load_config, to_toml, with_absolute_paths, with_backend
from asyncrl.errors import ConfigError, LedgerError, RunFailed
from asyncrl.files.access import make_folder, new_secret, read_secret, write_secret
from asyncrl.files.atomic import needed
from asyncrl.files.checkpoints import step_folders
from asyncrl.files.lock import locked
from asyncrl.log import get_logger
from asyncrl.records.formatting import counted
from asyncrl.records.run_directory import LOCK_WAIT_S, RunDirectory
from asyncrl.records.run_record import REFUSED_EVENT
from asyncrl.runtime.origin import disown, original_of
from asyncrl.spool.segments import Segments

log = get_logger()

# ── held run ──────────────────────────────────────────────────────────────────────────────────


class HeldRun(Struct, frozen=True):
    """A run directory that this process holds."""

    directory: RunDirectory
    config: Config
    secret: bytes
    secret_file: Path


@contextmanager
def held_run(path: Path, config: Config, secret_file: Path | None = None) -> Iterator[HeldRun]:
    """
    Create the run in ``path``, or continue it. Nothing is changed before the lock is held.

    Args:
        config: Of a new run. For an existing run it may differ in what `asyncrl.config.live` allows.
        secret_file: Secret to use; None takes the run's own, which is made with the run.

    Raises:
        LinkError: Another broker serves this run.
        ConfigError: The folder holds something else than a run, ``config`` is not that of the run, or another user
            could have written the one that is recorded.
        RunFailed: The disk refuses a write.
    """
    with needed(path), suppress(FileExistsError):
        make_folder(path, group_reads=config.run.share_with_group)
    served = f"another broker serves the run in {path}"
    directory = RunDirectory(path)
    with (
        locked(directory.lock, served, LOCK_WAIT_S, remedy="stop it, or give another --run-dir"),
        refusal_recorded(directory),
    ):
        if was_open := directory.close(group_reads=config.run.share_with_group):
            log.warning("run.was_open", cause=was_open)
        if original_of(directory):  # Told when its ledger is opened.
            disown(directory)
        config = with_backend(with_absolute_paths(config, Path.cwd()))
        if directory.config.is_file():
            if changed(load_config(directory.config), config):
                directory.write_config(to_toml(config))
        else:
            others = {item.name for item in path.iterdir()} - {"broker.lock", "secret", "key", "logs", "metrics"}
            if others:
                raise ConfigError(
                    f"{path} has files ({', '.join(sorted(others)[:3])}), but no config.toml of a run: give another "
                    f"--run-dir"
                )
            directory.write_config(to_toml(config))
        if secret_file is None:
            secret_file = directory.secret
            if not secret_file.exists():
                with needed(secret_file):
                    write_secret(secret_file, new_secret())
        yield HeldRun(RunDirectory.reopen(path), config, read_secret(secret_file), secret_file)


@contextmanager
def refusal_recorded(directory: RunDirectory) -> Iterator[None]:
    """Leave the cause for which an existing run is not served in its events: whoever looks there has no log of it."""
    try:
        yield
    except (ConfigError, LedgerError) as error:
        if directory.config.is_file():
            with suppress(RunFailed):
                directory.append_event(REFUSED_EVENT, cause=str(error))
        raise


def why_complete(path: Path, config: Config) -> str:
    """Reason why the run in ``path`` is complete with ``config``, and what would make it longer; empty if it is not."""
    summary = RunDirectory(path).finished_summary()
    if summary and summary.steps >= config.run.steps:
        return f"the run in {path} is complete; to train it longer, raise run.steps"
    if summary and summary.goal and summary.goal == config.run.stop_when:
        return (
            f"the run in {path} is complete after {counted(summary.steps, 'step')}: an evaluation has what "
            f"run.stop_when = {summary.goal!r} asks; to train it longer, set another run.stop_when, or none"
        )
    return ""


# ── consistency ───────────────────────────────────────────────────────────────────────────────
# Consistency check of a run's files, before its broker resumes.
#
#     ledger ── refers to payloads ──▶ spool
#        ▲─── contains each step of ── metrics, checkpoints
#
# A crash keeps the files consistent, because each is durable before another refers to it. A disk that loses confirmed
# writes, a file restored from an older copy, or a deleted file does not. Resuming then would train a step twice with
# different batches, or wait for a lost trajectory.

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
    done = [(line["step"] + 1, str(directory.metrics)) for line in directory.read_metrics()]
    done += [(step, str(folder)) for step, folder in step_folders(directory.checkpoints).items()]
    for steps, path in sorted(done, reverse=True):
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
