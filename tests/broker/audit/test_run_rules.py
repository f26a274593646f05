"""Manifests, and the table of ended groups, against the ledger."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.broker.audit.run_rules import (
    ManifestFacts,
    checkpoint_problems,
    commit_problems,
    config_problems,
    different_files,
    held_out_event_problems,
    held_out_summary_problems,
    missing_files,
    read_manifest,
    recorded_config,
    retired_problems,
)
from asyncrl.broker.ledger.records import AnyRecord, Committed, Dropped, Measured, Taken, VersionLive
from asyncrl.broker.ledger.state import LedgerState
from asyncrl.config.config import to_json
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import LedgerError
from asyncrl.files.checkpoints import FileEntry, file_entry
from tests.broker.audit.test_sample_rules import SUMMARY_WITNESS_RULES
from tests.broker.driver import a_config


def book(*commits: Committed, num_steps: int = 5, steps_per_publish: int = 1) -> LedgerState:
    made = LedgerState(Schedule(groups_per_step=1, group_size=1, steps_per_publish=steps_per_publish))
    records: list[AnyRecord] = [VersionLive(0, 0), *(Taken(step, [step]) for step in range(num_steps)), *commits]
    for record in records:
        made.add(record)
    return made


def test_a_checkpoint_that_fits() -> None:
    manifests = {"step_000004": ManifestFacts(step=4, policy_version=4, run_id="a")}
    assert list(checkpoint_problems(book(), "a", manifests, 1)) == []


def test_the_last_version_of_a_run_may_have_fewer_steps() -> None:
    manifests = {"step_000005": ManifestFacts(step=5, policy_version=3)}
    assert list(checkpoint_problems(book(steps_per_publish=2), "a", manifests, 2)) == []


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (ManifestFacts(step=4, policy_version=4, run_id="b"), "belongs to another run: expected run a, got b"),
        (ManifestFacts(step=3, policy_version=3), "contains 3 steps: expected those of its name"),
        (ManifestFacts(step=9, policy_version=9), "contains 9 steps, but the ledger has batches of 5"),
        (ManifestFacts(step=4, policy_version=3), "its weights are version 3: expected version 4, made by 4 steps"),
    ],
)
def test_a_checkpoint_that_does_not(manifest: ManifestFacts, problem: str) -> None:
    problems = list(checkpoint_problems(book(), "a", {"step_000004": manifest}, 1))
    assert any(problem in found for found in problems)


def test_a_commit_needs_a_checkpoint_of_its_step_or_a_newer_one() -> None:
    made = book(Committed(1, "/runs/x/step_000002"), Committed(3, "/runs/x/step_000004"))
    assert list(commit_problems(made, ["step_000004"])) == []
    assert list(commit_problems(made, [])) == [], "the trainer may be on another machine"
    assert list(commit_problems(made, ["step_000002"])) == [
        "ledger.sqlite: step 4 was committed, but the newest checkpoint contains 2 steps: the commit is forged, or its "
        "checkpoint was removed"
    ]
    wrong = book(Committed(1, "/runs/x/step_000004"))
    assert list(commit_problems(wrong, ["step_000004"])) == [
        "ledger.sqlite: step 2 was committed to /runs/x/step_000004: no checkpoint of that step"
    ]


def test_a_manifest_is_read_without_the_trainers_libraries(tmp_path: Path) -> None:
    folder = tmp_path / "step_000002"
    assert read_manifest(folder) is None, "removed meanwhile"
    folder.mkdir()
    with pytest.raises(LedgerError, match=r"checkpoints/step_000002/manifest.json: it is missing"):
        read_manifest(folder)
    (folder / "manifest.json").write_text('{"step": 2, "policy_version": 2, "files": {"a": {"size": 3, "sha256": ""}}}')
    manifest = read_manifest(folder)
    assert manifest is not None
    assert (manifest.step, manifest.run_id) == (2, "")
    assert list(missing_files(folder, manifest)) == ["checkpoints/step_000002/a: expected 3 bytes, got no such file"]
    (folder / "a").write_text("abcd")
    assert list(missing_files(folder, manifest)) == ["checkpoints/step_000002/a: expected 3 bytes, got 4 bytes"]
    (folder / "manifest.json").write_text("{")
    with pytest.raises(LedgerError, match="it cannot be read"):
        read_manifest(folder)


def test_contents_that_differ_and_files_that_are_not_listed(tmp_path: Path) -> None:
    folder = tmp_path / "step_000002"
    folder.mkdir()
    for name in ("a", "b", "manifest.json"):
        (folder / name).write_text(name)
    manifest = ManifestFacts(step=2, policy_version=2, files={"a": file_entry(folder / "a"), "gone": FileEntry(1, "")})
    assert list(different_files(folder, manifest)) == ["checkpoints/step_000002/b: the manifest does not list it"]
    (folder / "b").unlink()
    (folder / "a").write_text("x")
    (problem,) = different_files(folder, manifest)
    assert problem.startswith("checkpoints/step_000002/a: it is not what was written: expected sha256 ca978112ca1b")


# ── test config rules ─────────────────────────────────────────────────────────────────────────
# config.toml against the configuration in the ledger.

CONFIG = a_config(run={"steps": 3})


def test_a_configuration_that_is_the_recorded_one() -> None:
    recorded = recorded_config(to_json(CONFIG).decode())

    assert recorded == CONFIG
    assert list(config_problems(CONFIG, CONFIG, is_over=True)) == []


def test_a_ledger_may_have_none_or_one_of_another_asyncrl() -> None:
    assert recorded_config("") is None
    assert recorded_config('{"run": {"strides": 3}}') is None


def test_what_may_change_may_differ_only_before_a_run_goes_on() -> None:
    longer = replace(CONFIG, run=replace(CONFIG.run, steps=5, seed=9))

    assert list(config_problems(CONFIG, longer, is_over=False)) == [
        "config.toml: run.seed is 9: expected 0, as in the ledger"
    ]
    assert list(config_problems(CONFIG, longer, is_over=True)) == [
        "config.toml: run.steps is 5: expected 3, as in the ledger",
        "config.toml: run.seed is 9: expected 0, as in the ledger",
    ]


# ── test held out rules ───────────────────────────────────────────────────────────────────────
# Held-out results against the ledger.


def held_out_rules_book(*measured: Measured) -> LedgerState:
    made = LedgerState(Schedule())
    for record in measured:
        made.add(record)
    return made


MEASURED = held_out_rules_book(Measured(0, 0.25, 8), Measured(1, 0.5, 8, {"avg@2": 0.4}), Measured(2, float("nan"), 0))


def test_accuracies_of_the_summary_are_the_first_and_the_last_that_were_measured() -> None:
    summary = replace(SUMMARY_WITNESS_RULES, base_accuracy=0.25, held_out_accuracy=0.5)

    assert list(held_out_summary_problems(MEASURED, summary)) == []
    assert list(held_out_summary_problems(MEASURED, replace(summary, held_out_accuracy=0.9))) == [
        "summary.json: held_out_accuracy is 0.9: expected 0.5, as in the ledger"
    ]
    assert list(held_out_summary_problems(held_out_rules_book(), replace(summary, held_out_accuracy=None))) == [
        "summary.json: base_accuracy is 0.25: expected None, as in the ledger"
    ]
    failed = replace(summary, status="failed", held_out_accuracy=0.9)
    assert list(held_out_summary_problems(MEASURED, failed)) == [], "the ledger could not be written"


def test_the_last_event_of_a_version_has_what_the_ledger_has() -> None:
    event = {"event": "eval.finished", "policy_version": 1, "accuracy": 0.5, "num_prompts": 8, "avg@2": 0.4}

    assert list(held_out_event_problems(MEASURED, [event | {"accuracy": 0.1}, event])) == [], "measured again"
    assert list(held_out_event_problems(MEASURED, [event | {"policy_version": 7}])) == [], "its broker died before"
    assert list(held_out_event_problems(MEASURED, [event | {"avg@2": 0.6}])) == [
        "events.jsonl: eval.finished of version 1 has avg@2 0.6: expected 0.4, as in the ledger"
    ]


# ── retired groups ─────────────────────────────────────────────────────────────────────────────
# The table of ended groups against the records.


BOOK = LedgerState(Schedule())
BOOK.add(Taken(0, [1, 2]))
BOOK.add(Dropped(3, "bad", 0))
TABLE = {1: "taken/0", 2: "taken/0", 3: "dropped"}


def test_a_table_that_fits() -> None:
    assert list(retired_problems(BOOK, TABLE, TABLE)) == []


def test_groups_that_end_while_the_records_are_read() -> None:
    assert list(retired_problems(BOOK, {}, TABLE | {4: "taken/1"})) == []


def test_rows_that_differ_are_too_many_or_are_missing() -> None:
    assert list(retired_problems(BOOK, TABLE | {1: "dropped"}, TABLE)) == [
        "ledger.sqlite: its table retired has group 1 as dropped: expected taken/0, as in the records"
    ]
    assert list(retired_problems(BOOK, {4: "dropped"}, TABLE)) == [
        "ledger.sqlite: its table retired has group 4 as dropped: expected no end, as in the records"
    ]
    assert list(retired_problems(BOOK, {}, {1: "taken/0"})) == [
        "ledger.sqlite: its table retired lacks group 2: expected taken/0, as in the records",
        "ledger.sqlite: its table retired lacks group 3: expected dropped, as in the records",
    ]
