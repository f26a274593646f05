"""`asyncrl audit` and `dead-letters`: read a run directory, also during the run, and format what it holds."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from asyncrl.broker.audit.run_audit import RunAudit
from asyncrl.broker.audit.sample_rules import StoredPayload
from asyncrl.broker.ledger.audit import Audit
from asyncrl.broker.ledger.reader import DeadLetter, dead_letters, read_ledger_meta, read_records
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError, LedgerError, VerifierError
from asyncrl.foreign_text import shown
from asyncrl.messages.spool import HOSTED_SPOOL
from asyncrl.messages.trajectory import Prompt, Trajectory
from asyncrl.messages.words import FinishReason
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import require_run
from asyncrl.records.samples import SampleFacts, prompt_text, read_facts
from asyncrl.reward.verifier import Verdict, VerifierInput, verifier_input
from asyncrl.spool.folder import read_contents, read_identity, segment_numbers
from asyncrl.spool.segment_writer import Entry, Place
from asyncrl.terminal import Row, aligned

# ── regrading ─────────────────────────────────────────────────────────────────────────────────
# `asyncrl audit --grade`: the samples of a run graded again by its reward, in the killable workers of a run.
#
# Graded are single completions whose prompts the data still has. A reward that is not a function of the completion
# and its row, such as one that asks a model, may give another number without anybody having lied.

TOGETHER = 1024
"""Completions judged at a time."""
ROUNDING = 1e-9


def regraded(directory: RunDirectory, config: Config, accounts: Audit) -> Audit:
    """The audit with what grading the samples again has found."""
    try:
        problems, num_graded, left = _graded(directory, config)
    except (ConfigError, LedgerError) as error:
        return replace(accounts, unchecked={**accounts.unchecked, "rewards": f"not graded again: {error}"})
    checked = {**accounts.checked, "rewards": f"{num_graded:,} samples graded again"}
    unchecked = {**accounts.unchecked, **({"rewards": "; ".join(left)} if left else {})}
    return replace(accounts, problems=[*accounts.problems, *problems], checked=checked, unchecked=unchecked)


def _graded(directory: RunDirectory, config: Config) -> tuple[list[str], int, list[str]]:
    """Sentences about rewards that differ, the number of samples graded, and what could not be graded."""
    if config.environment.is_set:
        return [], 0, ["episodes, whose environment gave their rewards"]
    if config.reward.group:
        return [], 0, ["rewards of reward.group, which compared whole groups"]
    prompts = train_stream(config.data, config.run.seed)
    problems, failed, strange = list[str](), 0, 0
    gradable: list[tuple[str, SampleFacts, VerifierInput]] = []
    for file in sorted(directory.samples.glob("step_*.parquet")):
        for row in read_facts(file):
            prompt = prompts.at(row.group_id).prompt
            if (row.prompt, row.answer) == (prompt_text(prompt), prompt.answer):
                gradable.append((f"samples/{file.name}", row, _inputs(prompt, row)))
            else:
                strange += 1
    verdicts = asyncio.run(_judged(config, [inputs for _, _, inputs in gradable]))
    for (name, row, _), verdict in zip(gradable, verdicts, strict=True):
        if verdict is None:
            failed += 1
        elif not math.isclose(row.reward, verdict.reward, rel_tol=ROUNDING, abs_tol=ROUNDING):
            problems.append(
                f"{name}: unit {row.group_id}/{row.index} has the reward {row.reward}: graded again, its completion "
                f"gets {verdict.reward}"
            )
    left = [f"{failed:,} samples, for which the reward failed now"] if failed else []
    left += [f"{strange:,} samples, whose prompts the data does not have"] if strange else []
    return problems, len(gradable) - failed, left


def _inputs(prompt: Prompt, row: SampleFacts) -> VerifierInput:
    reason: FinishReason = "length" if row.finish_reason == "length" else "stop"
    return verifier_input(prompt, row.completion, finish_reason=reason, num_tokens=row.num_tokens)


async def _judged(config: Config, inputs: Sequence[VerifierInput]) -> list[Verdict | None]:
    """Verdicts; None where the reward failed."""

    async def judged(one: VerifierInput) -> Verdict | None:
        try:
            return await pool.judge(one)
        except VerifierError:
            return None

    from asyncrl.runtime.offline import open_rewards  # numpy, which other audits do without

    verdicts: list[Verdict | None] = []
    async with open_rewards(config) as pool:
        for first in range(0, len(inputs), TOGETHER):
            verdicts += await asyncio.gather(*map(judged, inputs[first : first + TOGETHER]))
    return verdicts


# ── inspect ───────────────────────────────────────────────────────────────────────────────────

SHOWN = 8
"""Number of drop reasons listed; rarer ones are summed."""


# ── read ────────────────────────────────────────────────────────────────────────────────────


def read_audit(path: Path, *, is_quick: bool = False, is_graded: bool = False, spools: Sequence[Path] = ()) -> Audit:
    """
    Audit a run: its ledger, and its other files against it.

    Args:
        is_quick: Leave out what reads every byte of checkpoints and payloads.
        is_graded: Grade the samples again.
        spools: Folders of spools beside the broker's own, or copies of them.

    Raises `ConfigError` if there is no run directory, or a folder is not that of a spool of this run, and `LedgerError`
    if the ledger is missing or damaged.
    """
    directory = require_run(path)
    config = load_config(directory.config)
    run_audit = RunAudit(
        directory,
        config,
        read_spool=_stored_payloads,
        list_segments=segment_numbers,
        spools={HOSTED_SPOOL: directory.spool, **_named(spools, directory)},
        is_quick=is_quick,
    )
    accounts = run_audit.audit()
    return regraded(directory, run_audit.config, accounts) if is_graded else accounts


def _named(spools: Sequence[Path], directory: RunDirectory) -> dict[str, Path]:
    """Folders of spools by name. Raises `ConfigError` for one of another run."""
    identities = {folder: read_identity(folder) for folder in spools}
    for folder, identity in identities.items():
        meta = read_ledger_meta(directory.ledger)
        if identity.run_id not in (meta.run_id, meta.chain_id):  # The latter: of what a run was copied from.
            raise ConfigError(
                f"{folder} has the payloads of run {identity.run_id or 'none'}, but {directory.path} is run "
                f"{meta.run_id}: give the folder of a spool of this run"
            )
    return {identity.name: folder for folder, identity in identities.items()}


def _stored_payloads(spool: Path) -> Iterator[StoredPayload | str]:
    for segment in read_contents(spool):
        if segment.problem:
            yield segment.problem
        for entry, place, payload in segment.payloads:
            yield stored_payload(segment.path.name, entry, place, payload)


def stored_payload(file: str, entry: Entry, place: Place, payload: bytes) -> StoredPayload:
    """An entry of a segment as the audit takes it, with the trajectory decoded."""
    return StoredPayload(
        file=file,
        unit=entry.unit,
        lease_id=entry.lease_id,
        summary=entry.summary,
        segment=place.segment,
        offset=place.offset,
        length=place.length,
        crc32=place.crc32,
        trajectory=_trajectory(payload),
    )


def _trajectory(payload: bytes) -> Trajectory | None:
    try:
        return msgspec.msgpack.decode(payload, type=Trajectory)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_dead_letters(path: Path) -> list[DeadLetter]:
    """The dead letters of a run. Raises as `read_audit`."""
    return dead_letters(read_records(require_run(path).ledger))


# ── tables ──────────────────────────────────────────────────────────────────────────────────


def audit_table(audit: Audit) -> str:
    """The counts in sections, then the problems, one line each."""
    sections = (_groups, _trajectories, _tokens, _staleness, _lengths, _extent)
    rows = [row for section in sections for row in section(audit)]
    return "\n".join([*aligned(rows, right=[1]), *_conclusion(audit)])


def dead_letter_table(letters: Sequence[DeadLetter]) -> str:
    if not letters:
        return "no dead letters"
    rows = [["trajectory", "split", "epoch", "row", "stage", "attempts", "reason"]]
    for letter in letters:
        epoch, row = ("-" if place is None else str(place) for place in (letter.epoch, letter.row))
        name = f"{letter.group_id}/{letter.index}"
        rows.append([name, letter.split, epoch, row, letter.stage, str(letter.attempts), _one_line(letter.reason)])
    return "\n".join(aligned(rows, right=[2, 3, 5]))


# ── sections of an audit: label, number, note ───────────────────────────────────────────────


def _groups(audit: Audit) -> Iterator[Row]:
    yield ["groups", "", ""]
    yield ["  issued", f"{audit.issued:,}", ""]
    unreported = f", {audit.unreported:,} of them handed out and not reported yet" if audit.unreported else ""
    steps = f"in {audit.steps:,} steps{unreported}; {audit.committed:,} in a checkpoint"
    yield [f"  {_trained(audit)}", f"{audit.trained:,}", steps]
    if audit.untrained:
        yield ["  untrained", f"{sum(audit.untrained.values()):,}", f"left out of a step: {_listed(audit.untrained)}"]
    yield ["  dropped", f"{sum(audit.dropped.values()):,}", ""]
    reasons = list(audit.dropped.items())
    for reason, count in reasons[:SHOWN]:
        yield ["", f"{count:,}", f"  {_one_line(reason)}"]
    if rest := reasons[SHOWN:]:
        yield ["", f"{sum(count for _, count in rest):,}", f"  for {len(rest)} other reasons"]
    yield ["  open", f"{audit.open:,}", "issued, and neither trained nor dropped yet"]
    if audit.restarted:
        yield ["  restarted", f"{audit.restarted:,}", "too old to be trained on, or lost with a spool"]
    yield ["  skipped", f"{audit.skipped:,}", ""]
    if audit.retired:
        yield ["  passed over", f"{audit.retired:,}", "their prompts were retired (data.retire_at)"]
    yield ["  double-trained", f"{audit.double_trained:,}", ""]
    yield ["  most open at once", f"{audit.peak_open:,}", f"of at most {audit.window:,}"]


def _trained(audit: Audit) -> str:
    """Word for what the batches have: that of a step which nobody has reported may not be trained on yet."""
    return "trained or taken" if audit.unreported else "trained"


def _trajectories(audit: Audit) -> Iterator[Row]:
    yield ["trajectories", "", ""]
    yield ["  re-issued", f"{sum(audit.reissued.values()):,}", _listed(audit.reissued)]
    yield ["  duplicates", f"{audit.duplicates:,}", ""]
    if audit.void_rewards:
        yield ["  graded again", f"{audit.void_rewards:,}", "their group was restarted, so the first verdict is void"]
    yield ["  failed attempts", f"{sum(audit.failed_attempts.values()):,}", _listed(audit.failed_attempts)]
    if audit.left_out:
        yield [
            "  left out",
            f"{sum(audit.left_out.values()):,}",
            "failed for good, and their groups went on without them",
        ]
    yield ["  dead letters", f"{audit.dead_letters:,}", "failed too often; see asyncrl dead-letters"]


def _tokens(audit: Audit) -> Iterator[Row]:
    yield ["tokens", "", ""]
    yield [f"  {_trained(audit)}", f"{audit.tokens_trained:,}", ""]
    yield ["  thrown away", f"{sum(audit.tokens_thrown_away.values()):,}", _listed(audit.tokens_thrown_away)]


def _staleness(audit: Audit) -> Iterator[Row]:
    yield ["staleness, versions", _trained(audit), f"share of {_trained(audit)} trajectories"]
    total = sum(audit.staleness.values())
    for staleness, count in audit.staleness.items():
        yield [f"  {staleness}", f"{count:,}", f"{count / total:.1%}"]
    if audit.over_max_staleness:
        yield ["  over max_staleness", f"{audit.over_max_staleness:,}", f"{audit.over_max_staleness / total:.1%}"]


def _lengths(audit: Audit) -> Iterator[Row]:
    yield ["length, tokens", _trained(audit), "dropped"]
    shortest = 0
    for bucket in audit.lengths:
        share = bucket.dropped / max(bucket.trained + bucket.dropped, 1)
        note = f"{bucket.dropped:,} ({share:.1%})" if bucket.dropped else "0"
        note += f"; {bucket.restarted:,} restarted" if bucket.restarted else ""
        yield [f"  {shortest}-{bucket.max_tokens}", f"{bucket.trained:,}", note]
        shortest = bucket.max_tokens + 1
    if audit.dropped_unfinished:
        yield ["  unknown", "", f"{audit.dropped_unfinished:,} never finished"]


def _extent(audit: Audit) -> Iterator[Row]:
    if audit.checked:
        yield ["checked", "", ""]
    yield from ([f"  {file}", "", extent] for file, extent in audit.checked.items())
    if audit.unchecked:
        yield ["not checked", "", ""]
        yield from ([f"  {file}", "", _one_line(reason)] for file, reason in audit.unchecked.items())


def _conclusion(audit: Audit) -> Iterator[str]:
    if not audit.problems:
        places = " + ".join([_trained(audit), *(["untrained"] if audit.untrained else []), "dropped", "open"])
        yield f"everything adds up: issued = {places}, nothing skipped, nothing trained twice"
        return
    yield f"{len(audit.problems)} {'problem' if len(audit.problems) == 1 else 'problems'}"
    yield from (f"  {_one_line(problem)}" for problem in audit.problems)


# ── cells ───────────────────────────────────────────────────────────────────────────────────


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{shown(name)} {count:,}" for name, count in counts.items() if count)


def _one_line(text: str) -> str:
    return shown(" ".join(text.split()))
