"""
Audit of a run directory: its ledger, and every other file against it. The run may still be going on.

    metrics, summary, events, checkpoints ─▶ claim nothing that the ledger lacks          read before the ledger
    ledger ─▶ each record possible, everything counted
    metrics, checkpoints, samples, spool, data ─▶ have what the ledger claims              read after it

So a run that goes on meanwhile looks consistent: what appears between two readings is only ever read later.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.audit.checkpoint_rules import (
    ManifestFacts,
    checkpoint_problems,
    commit_problems,
    missing_files,
    read_manifest,
)
from asyncrl.broker.audit.sample_rules import sample_problems
from asyncrl.broker.audit.spool_rules import SpoolRules, StoredPayload
from asyncrl.broker.audit.step_rules import (
    Line,
    lost_records,
    metrics_problems,
    summary_problems,
    unrecorded_problems,
)
from asyncrl.broker.ledger.audit import LEDGER, Audit, examine
from asyncrl.broker.ledger.reader import LedgerMeta, read_ledger_meta, read_records
from asyncrl.broker.ledger.record_book import RecordBook
from asyncrl.config.config import Config
from asyncrl.data.digest import check_same
from asyncrl.data.prompts import PromptStream, held_out_stream, train_stream
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.checkpoints import step_folders
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.samples import SamplesWriter, read_facts

ReadSpool = Callable[[Path], Iterable[StoredPayload | str]]
"""Reads a spool's directory: each payload, or a sentence about a segment that cannot be read."""
ListSegments = Callable[[Path], Iterable[int]]
"""Lists the numbers of the segments in a spool's directory."""


class Claims(Struct, frozen=True):
    """Contents of the files that must not claim more than the ledger, read before it."""

    lines: Sequence[Line]
    events: Sequence[Line]
    summary: RunSummary | None
    manifests: dict[str, ManifestFacts]
    segments: set[int]
    problems: list[str]


class RunAudit:
    """Audit of one run. ``read_spool`` and ``list_segments`` read the spool named ``spool``, in the run directory."""

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        *,
        read_spool: ReadSpool,
        list_segments: ListSegments,
        spool: str = "spool",
    ) -> None:
        self._directory = directory
        self._config = config
        self._read_spool = read_spool
        self._list_segments = list_segments
        self._spool = spool
        self._checked: dict[str, str] = {}
        self._unchecked: dict[str, str] = {}

    def audit(self) -> Audit:
        """Read everything and compare it. Raises `LedgerError` if the ledger is missing or damaged."""
        directory, config = self._directory, self._config
        claims = self._claims()
        meta = read_ledger_meta(directory.ledger)
        accounts, book = examine(
            read_records(directory.ledger),
            config.schedule,
            config.greedy_per_group,
            retires=config.data.retire_at > 0,
        )
        problems = [
            *(f"{LEDGER}: {problem}" for problem in accounts.problems),
            *lost_records(book, meta.broker_term, claims.lines, claims.events, claims.summary),
            *claims.problems,
            *self._steps(book, claims),
            *self._checkpoints(book, meta, claims),
            *self._samples(book, claims),
            *self._payloads(book, claims),
            *self._data(book, meta),
        ]
        checked = {**accounts.checked, **self._checked}
        return replace(accounts, problems=problems, checked=checked, unchecked=self._unchecked)

    # ── before the ledger ───────────────────────────────────────────────────────────────────

    def _claims(self) -> Claims:
        directory, problems = self._directory, list[str]()
        lines, events, summary = list[dict[str, Any]](), list[dict[str, Any]](), None
        try:
            lines, events = directory.read_metrics(), directory.read_events()
            summary = directory.read_summary()
        except LedgerError as error:
            problems.append(str(error))
        manifests = {}
        for folder in step_folders(directory.checkpoints).values():
            try:
                if manifest := read_manifest(folder):
                    manifests[folder.name] = manifest
                    problems += missing_files(folder, manifest)
            except LedgerError as error:
                problems.append(str(error))
        return Claims(lines, events, summary, manifests, set(self._list_segments(directory.spool)), problems)

    # ── after the ledger ────────────────────────────────────────────────────────────────────

    def _steps(self, book: RecordBook, claims: Claims) -> Iterator[str]:
        yield from metrics_problems(book, claims.lines)
        with suppress(LedgerError):  # Its damage is a problem already.
            yield from unrecorded_problems(book, self._directory.read_metrics())
        skipped = sum(bool(line.get("skipped")) for line in claims.lines)
        self._checked["metrics.jsonl"] = f"{len(claims.lines):,} steps, {skipped:,} of them skipped by the trainer"
        if claims.summary:
            yield from summary_problems(book, claims.lines, claims.summary)
            self._checked["summary.json"] = claims.summary.status
        else:
            self._unchecked["summary.json"] = "there is none: the run goes on, or was killed"

    def _checkpoints(self, book: RecordBook, meta: LedgerMeta, claims: Claims) -> Iterator[str]:
        manifests = claims.manifests
        yield from checkpoint_problems(book, meta.run_id, manifests, self._config.schedule.steps_per_publish)
        names = [folder.name for folder in step_folders(self._directory.checkpoints).values()]
        yield from commit_problems(book, names)
        self._checked["checkpoints"] = f"{len(manifests):,} manifests, and the sizes of the files that they list"
        if book.commits and not names:
            self._unchecked["checkpoints"] = "there is none here: the trainer may write them on another machine"
        elif nameless := [name for name, manifest in manifests.items() if not manifest.run_id]:
            self._unchecked["checkpoints"] = f"{len(nameless):,} do not name their run"

    def _samples(self, book: RecordBook, claims: Claims) -> Iterator[str]:
        if not self._config.broker.samples:
            self._unchecked["samples"] = "broker.samples is false"
            return
        writer, num_rows, num_files, pending = SamplesWriter(self._directory.samples), 0, 0, 0
        is_finished = claims.summary is not None and claims.summary.status == "finished"
        lost = {event["step"] for event in claims.events if event["event"] == "samples.lost"}
        for step in (int(line["step"]) for line in claims.lines if line["step"] not in lost):
            file = writer.path(step)
            if file.exists():
                try:
                    rows = read_facts(file)
                except LedgerError as error:
                    yield str(error)
                    continue
                yield from (f"samples/{file.name}: {p}" for p in sample_problems(book, step, rows))
                num_files, num_rows = num_files + 1, num_rows + len(rows)
            elif not book.batch(step):
                continue  # Every group was left out of it.
            elif is_finished or step < book.first_needed_step:
                yield f"samples/{file.name}: it is missing, but step {step} was done"
            else:
                pending += 1
        self._checked["samples"] = f"{num_files:,} files, {num_rows:,} trajectories token by token"
        left = [f"{pending:,} steps, whose files are written when the run goes on"] if pending else []
        left += [f"{len(lost):,} steps, of which payloads were lost with a spool"] if lost else []
        if left:
            self._unchecked["samples"] = "; ".join(left)

    def _payloads(self, book: RecordBook, claims: Claims) -> Iterator[str]:
        # A segment that was trimmed after it was listed counts as trimmed, and one that is new as there.
        segments = claims.segments | set(self._list_segments(self._directory.spool))
        rules = SpoolRules(book, self._spool, segments)
        unreadable = 0
        for found in self._read_spool(self._directory.spool):
            if isinstance(found, str):
                unreadable += 1
                yield found
            else:
                yield from rules.add(found)
        gone = claims.segments - set(self._list_segments(self._directory.spool))
        if not unreadable:
            yield from rules.missing(gone)
        self._checked["spool"] = f"{rules.num_checked:,} payloads token by token"
        left = [f"{rules.num_trimmed:,} payloads are trimmed"] if rules.num_trimmed else []
        left += [f"{num:,} payloads are in {name}, on another machine" for name, num in rules.elsewhere.items()]
        if left:
            self._unchecked["spool"] = "; ".join(left)

    def _data(self, book: RecordBook, meta: LedgerMeta) -> Iterator[str]:
        data, config = self._config.data, self._config
        try:
            prompts = train_stream(data, config.run.seed)
            held_out = held_out_stream(data, config.evaluation.max_prompts) if data.held_out_files else None
        except ConfigError as error:
            self._unchecked["data"] = str(error)
            return
        digests = [("data.train", data.train_files, meta.train_digest, prompts)]
        if held_out:
            digests.append(("data.held_out", data.held_out_files, meta.held_out_digest, held_out))
        for setting, files, recorded, stream in digests:
            try:
                check_same(setting, files, recorded, stream.summary.digest)
            except ConfigError as error:
                yield str(error)
                return
        yield from _order_problems(book, prompts)
        if data.retire_at:
            yield from _retirement_problems(book, prompts, data.retire_at)
        self._checked["data"] = f"{len(book.admitted):,} prompts in the order of the data"
        if not meta.train_digest:
            self._unchecked["data"] = "the ledger has no digest of the rows"


def _retirement_problems(book: RecordBook, prompts: PromptStream, retire_at: float) -> Iterator[str]:
    """A place in the order that was passed over is one of a prompt that an earlier group had retired."""
    retired: set[int] = set()
    for group_id in range(max(book.admitted, default=-1)):
        _, row = prompts.place(group_id)
        if group_id not in book.admitted and row not in retired:
            yield (
                f"{LEDGER}: group {group_id} was skipped, but no earlier group of its row {row} reached data.retire_at "
                f"= {retire_at:g}"
            )
        if book.correct.get(group_id, 0.0) >= retire_at:
            retired.add(row)


def _order_problems(book: RecordBook, prompts: PromptStream) -> Iterator[str]:
    for group_id, admitted in book.admitted.items():
        draw = prompts.at(group_id)
        if (draw.epoch, draw.row) != (admitted.epoch, admitted.row):
            yield (
                f"{LEDGER}: group {group_id} was row {admitted.row} of epoch {admitted.epoch}: expected row {draw.row} "
                f"of epoch {draw.epoch}"
            )
