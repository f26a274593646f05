"""
Audit of a run directory: its ledger, and every other file against it. The run may still be going on.

    metrics, summary, events, checkpoints ─▶ claim nothing that the ledger lacks          read before the ledger
    ledger ─▶ each record possible, everything counted
    metrics, checkpoints, spool, samples, data ─▶ have what the ledger claims              read after it

So a run that goes on meanwhile looks consistent: what appears between two readings is only ever read later.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.broker.audit.run_rules import (
    CONFIG_FILE,
    Line,
    ManifestFacts,
    checkpoint_problems,
    commit_problems,
    config_problems,
    different_files,
    differing,
    held_out_event_problems,
    held_out_summary_problems,
    lost_records,
    metrics_problems,
    missing_files,
    read_manifest,
    recorded_config,
    retired_problems,
    summary_problems,
    unrecorded_problems,
)
from asyncrl.broker.audit.sample_rules import (
    SpoolRules,
    StoredFacts,
    StoredPayload,
    chain_problems,
    file_problems,
    head_of,
    heads_of_events,
    line_problems,
    meta_problems,
    sample_problems,
    summary_file_problems,
    unread,
    unwitnessed_steps,
)
from asyncrl.broker.ledger.audit import LEDGER, Audit, examine
from asyncrl.broker.ledger.reader import ChainCheck, Head, LedgerMeta, read_ledger_meta, read_records, read_retired
from asyncrl.broker.ledger.state import METRICS, SUMMARY, LedgerState
from asyncrl.config.config import Config
from asyncrl.data.digest import check_same
from asyncrl.data.prompts import PromptStream, held_out_stream, train_stream
from asyncrl.errors import ConfigError, LedgerError
from asyncrl.files.checkpoints import MANIFEST, file_entry, step_folders
from asyncrl.messages.trajectory import Unit
from asyncrl.records.formatting import nth
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.samples import SamplesWriter, prompt_text, read_facts

ReadSpool = Callable[[Path], Iterable[StoredPayload | str]]
"""Reads a spool's directory: each payload, or a sentence about a segment that cannot be read."""
ListSegments = Callable[[Path], Iterable[int]]
"""Lists the numbers of the segments in a spool's directory."""


class Claims(Struct, frozen=True):
    """Contents of the files that must not claim more than the ledger, read before it."""

    lines: Sequence[Line]
    events: Sequence[Line]
    summary: RunSummary | None
    summary_content: bytes
    manifests: dict[str, ManifestFacts]
    digests: dict[str, str]
    """SHA-256 of the manifests, by the name of their folder."""
    segments: dict[str, set[int]]
    """Numbers of the segment files, by the name of their spool."""
    retired: dict[int, str]
    heads: dict[str, Head]
    """Number and digest of the ledger's first records, by the file that has them."""
    problems: list[str]


class RunAudit:
    """
    Audit of one run.

    Args:
        config: Contents of config.toml. The ledger's own configuration is what the records are judged by.
        read_spool: Reads the directory of a spool; ``list_segments`` likewise.
        spools: Directories of spools by the names that the records have for them.
        is_quick: Leave out what reads every byte of checkpoints and payloads.
    """

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        *,
        read_spool: ReadSpool,
        list_segments: ListSegments,
        spools: Mapping[str, Path],
        is_quick: bool = False,
    ) -> None:
        self._directory = directory
        self.config = config
        """Configuration that the records are judged by: once they are, the ledger's own, if it has one."""
        self._read_spool = read_spool
        self._list_segments = list_segments
        self._spools = spools
        self._is_quick = is_quick
        self._checked: dict[str, str] = {}
        self._unchecked: dict[str, str] = {}
        self._prompts: set[tuple[int, str, str, str]] = set()
        """Group, samples file, prompt and answer of the samples."""

    def audit(self) -> Audit:
        """Read everything and compare it. Raises `LedgerError` if the ledger is missing or damaged."""
        directory = self._directory
        claims = self._claims()
        meta = read_ledger_meta(directory.ledger)
        problems = list(self._settings(meta, claims))
        config = self.config
        wanted = [head.num_records for head in claims.heads.values()]
        check = ChainCheck(meta.chain_id, sys.maxsize if meta.num_headless is None else meta.num_headless, wanted)
        accounts, state = examine(
            read_records(directory.ledger, check=check),
            config.schedule,
            config.greedy_per_group,
            retires=config.data.retire_at > 0,
        )
        of_payloads, stored = self._payloads(state, claims)
        problems = [
            *(f"{LEDGER}: {problem}" for problem in accounts.problems),
            *lost_records(state, meta.broker_term, claims.lines, claims.events, claims.heads),
            *problems,
            *claims.problems,
            *self._chain(state, meta, check, claims),
            *self._steps(state, claims),
            *self._checkpoints(state, meta, claims),
            *self._samples(state, claims, stored),
            *of_payloads,
            *self._data(state, meta),
        ]
        checked = {**accounts.checked, **self._checked}
        reported = {line["step"] for line in claims.lines} | set(range(state.versions.num_steps))
        unreported = len(state.batches.keys() - reported)
        return replace(accounts, problems=problems, checked=checked, unchecked=self._unchecked, unreported=unreported)

    def _leave(self, file: str, reason: str) -> None:
        """Say what was not checked."""
        self._unchecked[file] = "; ".join(filter(None, (self._unchecked.get(file), reason)))

    # ── before the ledger ───────────────────────────────────────────────────────────────────

    def _claims(self) -> Claims:
        directory, problems = self._directory, list[str]()
        lines, events, summary, content = list[dict[str, Any]](), list[dict[str, Any]](), None, b""
        try:
            lines, events = directory.read_metrics(), directory.read_events()
            summary = directory.read_summary()
            content = directory.summary.read_bytes() if summary else b""
        except (LedgerError, FileNotFoundError) as error:  # The latter: a resumed run has removed its summary.
            problems += [str(error)] if isinstance(error, LedgerError) else []
        manifests, digests = {}, {}
        for folder in step_folders(directory.checkpoints).values():
            try:
                if manifest := read_manifest(folder):
                    digests[folder.name] = _digest(folder / MANIFEST)
                    manifests[folder.name] = manifest
                    problems += missing_files(folder, manifest)
            except LedgerError as error:
                problems.append(str(error))
        heads = heads_of_events(events)
        heads |= {f"checkpoints/{name}/{MANIFEST}": head_of(manifest) for name, manifest in manifests.items()}
        if summary:
            heads[SUMMARY] = head_of(summary)
        segments, retired = self._segments(), read_retired(directory.ledger)
        return Claims(lines, events, summary, content, manifests, digests, segments, retired, heads, problems)

    def _settings(self, meta: LedgerMeta, claims: Claims) -> Iterator[str]:
        """Compare the configuration, and go on with the recorded one."""
        if (recorded := recorded_config(meta.config)) is None:
            what = "it has another format" if meta.config else "it has none"
            self._leave(CONFIG_FILE, f"the ledger's own configuration cannot be compared: {what}")
            return
        is_over = claims.summary is not None
        yield from config_problems(recorded, self.config, is_over=is_over)
        if not is_over and (later := differing(recorded, self.config)):
            self._leave(CONFIG_FILE, f"{', '.join(later)} differ, which may change when the run is resumed")
        self._checked[CONFIG_FILE] = "every value"
        self.config = recorded

    # ── after the ledger ────────────────────────────────────────────────────────────────────

    def _chain(self, state: LedgerState, meta: LedgerMeta, check: ChainCheck, claims: Claims) -> Iterator[str]:
        yield from chain_problems(check, claims.heads)
        yield from meta_problems(state, meta, is_over=claims.summary is not None)
        yield from retired_problems(state, claims.retired, read_retired(self._directory.ledger))
        kept = sum(bool(head.digest) for head in claims.heads.values())
        self._checked["digests of the ledger"] = f"its own, and {kept:,} kept by other files"
        if meta.num_headless is None:
            self._leave(LEDGER, "an earlier asyncrl wrote it, without digests of its records")
        elif meta.num_headless:
            self._leave(LEDGER, f"whether its first {meta.num_headless:,} records, of an earlier asyncrl, were edited")
        if not state.started:
            self._leave(LEDGER, "it has no digest of its configuration and its data")

    def _steps(self, state: LedgerState, claims: Claims) -> Iterator[str]:
        yield from metrics_problems(state, claims.lines)
        yield from line_problems(state, claims.lines)
        yield from held_out_event_problems(state, claims.events)
        with suppress(LedgerError):  # Its damage is a problem already.
            yield from unrecorded_problems(state, self._directory.read_metrics())
        skipped = sum(bool(line.get("skipped")) for line in claims.lines)
        self._checked[METRICS] = f"{len(claims.lines):,} steps, {skipped:,} of them skipped by the trainer"
        if unwitnessed := unwitnessed_steps(state, claims.lines):
            self._leave(METRICS, f"{len(unwitnessed):,} lines have no digest in the ledger: only what follows from it")
        if claims.summary:
            yield from summary_problems(state, claims.lines, claims.summary)
            yield from held_out_summary_problems(state, claims.summary)
            yield from summary_file_problems(state, claims.summary, claims.summary_content)
            self._checked[SUMMARY] = claims.summary.status
            if (SUMMARY, -1) not in state.written:
                self._leave(SUMMARY, "the ledger has no digest of it: only what follows from ledger and metrics")
        else:
            self._leave(SUMMARY, "there is none: the run goes on, or was killed")

    def _checkpoints(self, state: LedgerState, meta: LedgerMeta, claims: Claims) -> Iterator[str]:
        manifests, checkpoints = claims.manifests, self._directory.checkpoints
        yield from checkpoint_problems(state, meta.run_id, manifests, self.config.schedule.steps_per_publish)
        names = [folder.name for folder in step_folders(checkpoints).values()]
        yield from commit_problems(state, names)
        for name, digest in claims.digests.items():
            now = _digest(checkpoints / name / MANIFEST)
            yield from file_problems(state, f"checkpoints/{name}/{MANIFEST}", [digest, now or digest])
        if not self._is_quick:
            for name, manifest in manifests.items():
                yield from different_files(checkpoints / name, manifest)
        extent = "sizes" if self._is_quick else "contents"
        self._checked["checkpoints"] = f"{len(manifests):,} manifests, and the {extent} of the files that they list"
        if self._is_quick and manifests:
            self._leave("checkpoints", "contents of the files, which a quick audit leaves out")
        if state.commits and not names:
            self._leave("checkpoints", "there is none here: the trainer may write them on another machine")
        elif nameless := [name for name, manifest in manifests.items() if not manifest.run_id]:
            self._leave("checkpoints", f"{len(nameless):,} do not name their run")
        if unwitnessed := [name for name in manifests if (f"checkpoints/{name}/{MANIFEST}", -1) not in state.written]:
            self._leave("checkpoints", f"{len(unwitnessed):,} have a manifest of which the ledger has no digest")

    def _samples(self, state: LedgerState, claims: Claims, stored: Mapping[Unit, StoredFacts]) -> Iterator[str]:
        if not self.config.broker.samples:
            self._leave("samples", "broker.samples is false")
            return
        writer, num_rows, num_files, pending, unwitnessed = SamplesWriter(self._directory.samples), 0, 0, 0, 0
        is_finished = claims.summary is not None and claims.summary.status == "finished"
        lost = {event["step"] for event in claims.events if event["event"] == "samples.lost"}
        for step in (int(line["step"]) for line in claims.lines):
            file = writer.path(step)
            name = f"samples/{file.name}"
            if file.exists():
                yield from file_problems(state, name, [_digest(file)])
                unwitnessed += (name, -1) not in state.written
                try:
                    rows = read_facts(file, arrays=not self._is_quick)
                except LedgerError as error:
                    yield str(error)
                    continue
                if step not in lost:
                    yield from (f"{name}: {problem}" for problem in sample_problems(state, step, rows, stored))
                self._prompts |= {(row.group_id, name, row.prompt, row.answer) for row in rows}
                num_files, num_rows = num_files + 1, num_rows + len(rows)
            elif not state.batch(step):
                continue  # Every group was left out of it.
            elif step in lost and (name, -1) not in state.written:
                continue
            elif is_finished or step < state.first_needed_step:
                yield f"{name}: it is missing, but step {nth(step)} was done"
            else:
                pending += 1
        yield from self._other_samples(state, claims)
        self._checked["samples"] = f"{num_files:,} files, {num_rows:,} trajectories token by token"
        if pending:
            self._leave("samples", f"{pending:,} steps, whose files are written when the run goes on")
        if lost:
            self._leave("samples", f"{len(lost):,} steps, of which payloads were lost with a spool")
        if unwitnessed:
            self._leave("samples", f"{unwitnessed:,} files have no digest in the ledger: only what follows from it")

    def _other_samples(self, state: LedgerState, claims: Claims) -> Iterator[str]:
        """Sentences about files of held-out completions, and about files of steps that the ledger does not have."""
        folder = self._directory.samples
        for file in (file for file, _ in state.written if file.startswith("samples/held_out/")):
            if digest := _digest(self._directory.path / file):
                yield from file_problems(state, file, [digest])
            elif claims.summary:
                yield f"{file}: it is missing, but the ledger has its digest"
        if claims.summary:
            known = {f"step_{step:06d}.parquet" for step in state.batches}
            known |= {f"version_{record.policy_version:06d}.parquet" for record in state.measured}
            strange = [path for path in folder.rglob("*.parquet") if path.name not in known]
            for path in sorted(strange):
                yield f"{path.relative_to(self._directory.path)}: it belongs to no step or evaluation of the ledger"

    def _payloads(self, state: LedgerState, claims: Claims) -> tuple[list[str], Mapping[Unit, StoredFacts]]:
        """Sentences about payloads, and what those that are there have."""
        if self._is_quick:
            self._leave("spool", "its payloads, which a quick audit leaves out")
            return [], {}
        problems, trained, checked, trimmed = list[str](), dict[Unit, StoredFacts](), 0, 0
        # A segment that was trimmed after it was listed counts as trimmed, and one that is new as there.
        later = self._segments()
        for name, folder in self._spools.items():
            rules, is_readable = SpoolRules(state, name, claims.segments[name] | later[name]), True
            for found in self._read_spool(folder):
                is_readable &= not isinstance(found, str)
                problems += [found] if isinstance(found, str) else rules.add(found)
            if is_readable:
                problems += rules.missing(claims.segments[name] - set(self._list_segments(folder)))
            trained |= rules.trained
            checked, trimmed = checked + rules.num_checked, trimmed + rules.num_trimmed
        self._checked["spool"] = f"{checked:,} payloads token by token"
        if trimmed:
            self._leave("spool", f"{trimmed:,} payloads are trimmed")
        for sentence in unread(state, self._spools):
            self._leave("spool", sentence)
        return problems, trained

    def _segments(self) -> dict[str, set[int]]:
        return {name: set(self._list_segments(folder)) for name, folder in self._spools.items()}

    def _data(self, state: LedgerState, meta: LedgerMeta) -> Iterator[str]:
        data, config = self.config.data, self.config
        try:
            prompts = train_stream(data, config.run.seed)
            held_out = held_out_stream(data, config.evaluation.max_prompts) if data.held_out_files else None
        except ConfigError as error:
            self._leave("data", str(error))
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
        yield from _order_problems(state, prompts)
        yield from self._prompt_problems(state, prompts)
        if data.retire_at:
            yield from _retirement_problems(state, prompts, data.retire_at)
        self._checked["data"] = f"{len(state.admitted):,} prompts in the order of the data"
        if not meta.train_digest:
            self._leave("data", "the ledger has no digest of the rows")

    def _prompt_problems(self, state: LedgerState, prompts: PromptStream) -> Iterator[str]:
        for group_id, file, text, answer in sorted(self._prompts):
            if group_id in state.admitted:
                prompt = prompts.at(group_id).prompt
                if (text, answer) != (prompt_text(prompt), prompt.answer):
                    yield f"{file}: group {group_id} has another prompt or answer than its row of the data"


def _digest(path: Path) -> str:
    """SHA-256 of a file; empty if it is missing."""
    try:
        return file_entry(path).sha256
    except OSError:
        return ""


def _retirement_problems(state: LedgerState, prompts: PromptStream, retire_at: float) -> Iterator[str]:
    """A place in the order that was passed over is one of a prompt that an earlier group had retired."""
    retired: set[int] = set()
    for group_id in range(max(state.admitted, default=-1)):
        _, row = prompts.place(group_id)
        if group_id not in state.admitted and row not in retired:
            yield (
                f"{LEDGER}: group {group_id} was skipped, but no earlier group of its row {row} reached data.retire_at "
                f"= {retire_at:g}"
            )
        if state.correct.get(group_id, 0.0) >= retire_at:
            retired.add(row)


def _order_problems(state: LedgerState, prompts: PromptStream) -> Iterator[str]:
    for group_id, admitted in state.admitted.items():
        draw = prompts.at(group_id)
        if (draw.epoch, draw.row) != (admitted.epoch, admitted.row):
            yield (
                f"{LEDGER}: group {group_id} was row {admitted.row} of epoch {admitted.epoch}: expected row {draw.row} "
                f"of epoch {draw.epoch}"
            )
