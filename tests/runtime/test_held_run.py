import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.records import Admitted, Record, Result, Rewarded, Taken
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode, load_config, with_backend
from asyncrl.data.prompts import Draw
from asyncrl.errors import ConfigError, LedgerError, LinkError, RunFailed
from asyncrl.files.access import new_secret, read_secret, write_secret
from asyncrl.files.lock import locked
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.runtime import held_run as held_run_module
from asyncrl.runtime.held_run import held_run, require_consistent_files, why_complete
from asyncrl.runtime.origin import PLACE, FolderPlace, copy_sentence, is_copy, original_of, place_of, settle
from asyncrl.spool.segment_writer import Entry, Place
from asyncrl.spool.segments import Segments


def config(**run: object) -> Config:
    return with_backend(decode({"model": {"path": "/m"}, "data": {"train": "/t"}, "run": run}))


def test_the_same_command_creates_a_run_and_continues_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with held_run(path, config()) as created:
        assert load_config(created.directory.config) == config()
        assert created.directory.secret.stat().st_mode & 0o777 == 0o600
    with held_run(path, config()) as continued:
        assert continued.secret == created.secret


def test_a_run_is_its_owners_alone_unless_it_is_shared(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name, is_shared in (("a", False), ("b", True)):
            with held_run(tmp_path / "runs" / name, config(share_with_group=is_shared)):
                pass
    finally:
        os.umask(before)
    found = [(tmp_path / "runs" / name).stat().st_mode & 0o777 for name in ("", "a", "b")]
    assert found == [0o755, 0o700, 0o750]


def test_a_run_directory_that_others_could_enter_is_closed_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with held_run(path, config()):
        pass
    path.chmod(0o755)
    with capture_logs() as logs, held_run(path, config()):
        assert path.stat().st_mode & 0o777 == 0o700
    assert [line["cause"] for line in logs if line["event"] == "run.was_open"] == [
        f"other users could enter {path} (mode 0755): it is 0700 from now on"
    ]


def test_a_configuration_that_others_could_have_written_is_not_resumed(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()):
        pass
    (tmp_path / "a" / "config.toml").chmod(0o666)
    with pytest.raises(ConfigError, match="it may name code of theirs"), held_run(tmp_path / "a", config()):
        pass


def test_a_run_is_extended_by_its_command(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()):
        pass
    with held_run(tmp_path / "a", config(steps=90)) as run:
        assert load_config(run.directory.config).run.steps == 90


def test_a_run_of_another_configuration_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()):
        pass
    with (
        pytest.raises(ConfigError, match=r"run\.seed is 8, but this run was created with 0"),
        held_run(tmp_path / "a", config(seed=8)),
    ):
        pass
    assert load_config(tmp_path / "a" / "config.toml") == config()
    (refused,) = events(tmp_path / "a", "broker.refused")
    assert str(refused["cause"]).startswith("run.seed is 8, but this run was created with 0")


def test_a_refusal_while_the_run_is_opened_is_an_event_too_and_a_failure_is_none(tmp_path: Path) -> None:
    for error in (LedgerError("the ledger is damaged"), RunFailed("the disk is full")):
        with pytest.raises(type(error)), held_run(tmp_path / "a", config()):
            raise error
    assert [event["cause"] for event in events(tmp_path / "a", "broker.refused")] == ["the ledger is damaged"]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(ConfigError, match=r"has files \(thesis.tex\), but no config.toml"),
        held_run(tmp_path, config()),
    ):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", "broker.lock"}, "it is no run: no event"


def test_a_broker_that_was_killed_before_it_wrote_anything_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "broker.lock").write_text("7\n")
    write_secret(tmp_path / "secret", new_secret())
    with held_run(tmp_path, config()):
        assert (tmp_path / "config.toml").is_file()


def test_a_second_broker_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_run_module, "LOCK_WAIT_S", 0.0)
    with (
        locked(tmp_path / "broker.lock", "held"),
        pytest.raises(LinkError, match=r"another broker serves .* \(process \d+\); stop it, or give another --run-dir"),
        held_run(tmp_path, config()),
    ):
        pass
    assert not (tmp_path / "config.toml").exists()


def test_a_given_secret_is_used_and_not_copied(tmp_path: Path) -> None:
    secret = new_secret()
    write_secret(tmp_path / "given", secret)
    with held_run(tmp_path / "a", config(), tmp_path / "given") as run:
        assert run.secret == secret
    assert not (tmp_path / "a" / "secret").exists()


# ── consistency ───────────────────────────────────────────────────────────────────────────────────
# Inconsistent files of a run are refused before a broker resumes; a crash never makes them inconsistent.


CONFIG = decode(
    {
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "schedule": {"groups_per_step": 1, "group_size": 2},
    }
)
UNITS = [Unit(0, 0), Unit(0, 1)]
SUMMARY = TrajectorySummary(
    num_tokens=3, prompt_tokens=2, oldest_version=0, newest_version=0, num_spans=1, finish_reason="stop"
)


class Prompts:
    """An endless stream of questions."""

    def at(self, group_id: int) -> Draw:
        return Draw(group_id, 0, group_id, Prompt(text="2 + 2?", answer="4"))


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def stored(directory: RunDirectory) -> tuple[Segments, list[Place]]:
    segments = Segments(directory.spool)
    places = segments.append([(Entry(unit, 1, SUMMARY, "r0", "b1"), memoryview(b"payload")) for unit in UNITS])
    segments.sync()
    return segments, places


def one_step(places: Sequence[Place]) -> list[Record]:
    """A ledger in which step 0 was given its batch."""
    results = [Result(unit, 1, SpoolRef("spool", *place), SUMMARY) for unit, place in zip(UNITS, places, strict=True)]
    admitted = Admitted(group_id=0, epoch=0, row=0, policy_version=0)
    return [admitted, *results, *(Rewarded(unit, 1.0) for unit in UNITS), Taken(0, [0])]


def ask(directory: RunDirectory, segments: Segments, records: Sequence[Record], broker_term: int = 2) -> None:
    scheduler = Scheduler(CONFIG, Prompts(), [], broker_term)  # type: ignore[arg-type]
    replay(scheduler, records)  # type: ignore[arg-type]
    try:
        require_consistent_files(directory, scheduler, segments, spool="spool", broker_term=broker_term)
    finally:
        segments.close()


def test_a_run_that_was_killed_may_go_on(directory: RunDirectory) -> None:
    """The newest step was trained, and is in the metrics and in a checkpoint."""
    segments, places = stored(directory)
    directory.append_metrics({"step": 0})
    (directory.checkpoints / "step_000001").mkdir()
    (directory.checkpoints / ".step_000002.partial").mkdir()

    ask(directory, segments, one_step(places))


def test_a_new_run_may_begin(directory: RunDirectory) -> None:
    ask(directory, Segments(directory.spool), [], broker_term=1)


def test_a_ledger_behind_its_checkpoints_is_refused(directory: RunDirectory) -> None:
    segments, places = stored(directory)
    (directory.checkpoints / "step_000002").mkdir()

    with pytest.raises(LedgerError, match=r"step_000002 contains 2 steps, but the ledger .*ledger.sqlite contains 1: "):
        ask(directory, segments, one_step(places))


def test_a_ledger_behind_its_metrics_is_refused(directory: RunDirectory) -> None:
    segments, _ = stored(directory)
    directory.append_metrics({"step": 0})

    with pytest.raises(LedgerError, match=r"metrics\.jsonl contains 1 steps, but the ledger .* contains 0: "):
        ask(directory, segments, [])


def test_a_spool_that_lost_a_payload_is_refused(directory: RunDirectory) -> None:
    segments, places = stored(directory)
    segments.close()
    path = directory.spool / "segment_000000.seg"
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(LedgerError, match=rf"lacks 1 payloads .* 7 bytes at offset {places[1].offset} of segment 0;"):
        ask(directory, Segments(directory.spool), one_step(places))


def test_payloads_of_another_ledger_are_refused(directory: RunDirectory) -> None:
    segments, _ = stored(directory)

    with pytest.raises(LedgerError, match=r"is new, but the spool .* holds 2 payloads"):
        ask(directory, segments, [], broker_term=1)


# ── test origin ───────────────────────────────────────────────────────────────────────────────
# A copied run directory is a run of its own; a moved one goes on as itself.

HERE = FolderPlace("/runs/b", device=7, inode=42, machine="m1")


def served(path: Path) -> tuple[str, bytes]:
    """Identity and secret of a run, as a broker that serves it has them."""
    with held_run(path, config()) as run:
        ledger = Ledger(run.directory.ledger)
        settle(run.directory, ledger)
        ledger.close()
        return ledger.run_id, run.secret


def events(path: Path, kind: str) -> list[dict[str, object]]:
    return [event for event in RunDirectory(path).read_events() if event["event"] == kind]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    served(path)
    (path / "broker.address").write_text("tcp://127.0.0.1:5570\n")
    (path / "trackers" / "wandb").mkdir(parents=True)
    (path / "trackers" / "wandb" / "run_id").write_text("w1")
    return path


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (HERE, False),
        (replace(HERE, path="/runs/a"), False),
        (replace(HERE, device=8), False),
        (replace(HERE, path="/mnt/a", machine="m2"), False),
        (replace(HERE, inode=41), False),
        (replace(HERE, inode=41, machine="m2"), False),
        (replace(HERE, path="/runs/a", inode=41), True),
        (replace(HERE, path="/runs/a", inode=41, device=8), False),
        (replace(HERE, path="/runs/a", inode=41, device=8, machine="m2"), True),
    ],
    ids=[
        "the same",
        "moved",
        "mounted again",
        "a shared disk on another machine",
        "restored",
        "restored on another machine",
        "a copy on the same disk",
        "moved to another disk",
        "a copy on another machine",
    ],
)
def test_a_copy_is_told_from_what_was_moved_or_restored(recorded: FolderPlace, expected: bool) -> None:
    assert is_copy(recorded, HERE, original_is_there=False) == expected
    assert is_copy(recorded, HERE, original_is_there=True), "a snapshot of a disk has the same numbers"


def test_a_run_that_stays_where_it_is_stays_itself(original: Path) -> None:
    first = served(original)
    assert served(original) == first
    assert original_of(RunDirectory(original)) is None


def test_a_copy_becomes_a_run_of_its_own_once(original: Path, tmp_path: Path) -> None:
    run_id, secret = served(original)
    copy = tmp_path / "b"
    shutil.copytree(original, copy)
    place = original_of(RunDirectory(copy))
    assert place == place_of(original)

    copied_id, copied_secret = served(copy)

    assert copied_id != run_id
    assert copied_secret != secret
    (event,) = events(copy, "run.copied")
    assert event["cause"] == copy_sentence(RunDirectory(copy), place)
    assert (event["original"], event["run_id"]) == (run_id, copied_id)
    assert served(copy) == (copied_id, copied_secret)
    assert len(events(copy, "run.copied")) == 1
    assert served(original) == (run_id, secret), "the original goes on as it was"
    assert events(original, "run.copied") == []


def test_a_copy_has_no_address_and_no_tracker_of_its_original(original: Path, tmp_path: Path) -> None:
    """A node would find the original's broker by the copy, and a tracker continue the original's curves."""
    copy = tmp_path / "b"
    shutil.copytree(original, copy)
    served(copy)
    assert not (copy / "broker.address").exists()
    assert not (copy / "trackers").exists()
    assert (copy / "trackers-of-original-1" / "wandb" / "run_id").read_text() == "w1"
    assert (original / "trackers" / "wandb" / "run_id").read_text() == "w1"


def test_checkpoints_of_a_copy_are_its_own(original: Path, tmp_path: Path) -> None:
    run_id, _ = served(original)
    for step, owner in ((5, run_id), (10, "another"), (15, "")):
        (folder := original / "checkpoints" / f"step_{step:06d}").mkdir()
        (folder / "manifest.json").write_text(json.dumps({"files": {}, "run_id": owner, "step": step}))
    copy = tmp_path / "b"
    shutil.copytree(original, copy)

    copied_id, _ = served(copy)

    def owners(path: Path) -> list[str]:
        return [json.loads(file.read_text())["run_id"] for file in sorted(path.glob("checkpoints/*/manifest.json"))]

    assert owners(copy) == [copied_id, "another", ""]
    assert owners(original) == [run_id, "another", ""]


def test_a_moved_run_goes_on_as_itself_and_says_so(original: Path, tmp_path: Path) -> None:
    before = served(original)
    moved = tmp_path / "b"
    original.rename(moved)
    assert served(moved) == before
    (event,) = events(moved, "run.moved")
    assert (event["before"], event["now"]) == (str(original), str(moved))
    assert (moved / "trackers").is_dir()


def test_a_run_that_is_restored_from_its_copy_is_itself(original: Path, tmp_path: Path) -> None:
    """As every sentence on a damaged file advises."""
    before = served(original)
    shutil.copytree(original, tmp_path / "backup")
    shutil.rmtree(original)
    shutil.copytree(tmp_path / "backup", original)
    assert served(original) == before


def test_a_copy_of_a_copy_is_a_third_run(original: Path, tmp_path: Path) -> None:
    ids = {served(original)[0]}
    shutil.copytree(original, tmp_path / "b")
    ids.add(served(tmp_path / "b")[0])
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    ids.add(served(tmp_path / "c")[0])
    assert len(ids) == 3


def test_a_copy_whose_broker_was_killed_while_it_got_its_identity_gets_one(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, _ = served(original)
    (folder := original / "checkpoints" / "step_000005").mkdir()
    (folder / "manifest.json").write_text(json.dumps({"files": {}, "run_id": run_id}))
    copy = tmp_path / "b"
    shutil.copytree(original, copy)

    write_meta = Ledger.write_meta

    for last in ("run_id", PLACE):

        def killed(ledger: Ledger, key: str, value: int | str, last: str = last) -> None:
            if key == last:
                raise KeyboardInterrupt
            write_meta(ledger, key, value)

        monkeypatch.setattr(Ledger, "write_meta", killed)
        with pytest.raises(KeyboardInterrupt):
            served(copy)
    monkeypatch.undo()
    copied_id, _ = served(copy)
    assert json.loads((copy / "checkpoints" / "step_000005" / "manifest.json").read_text())["run_id"] == copied_id


def test_a_ledger_of_an_earlier_version_is_no_copy(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()) as run:
        Ledger(run.directory.ledger).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert original_of(RunDirectory(tmp_path / "b")) is None
    assert served(tmp_path / "b")[0] == served(tmp_path / "a")[0], "nothing tells which was first"


def test_the_secret_of_a_copy_is_its_users_alone(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path / "b")
    _, secret = served(tmp_path / "b")
    assert read_secret(tmp_path / "b" / "secret") == secret


# ── test completion ───────────────────────────────────────────────────────────────────────────
# A run whose services are started again after its end says what would make it longer.


@pytest.mark.parametrize(
    ("steps", "goal", "stop_when", "said"),
    [
        (9, "", "", "is complete; to train it longer, raise run.steps"),
        (4, "accuracy >= .6", "accuracy >= .6", "after 4 steps: an evaluation has what run.stop_when = 'accuracy"),
        (4, "accuracy >= .6", "accuracy >= .9", ""),
        (4, "accuracy >= .6", "", ""),
        (4, "", "", ""),
    ],
)
def test_a_complete_run_says_what_would_make_it_longer(
    tmp_path: Path, steps: int, goal: str, stop_when: str, said: str
) -> None:
    summary = RunSummary(
        name="run", status="finished", seed=0, steps=steps, steps_planned=9, goal=goal, versions=4, wall_s=1.0,
        trained_tokens=9, staleness_mean=0.0, staleness_max=0,
    )  # fmt: skip
    RunDirectory(tmp_path).write_summary(summary)
    told = why_complete(tmp_path, replace(config(), run=replace(config().run, steps=9, stop_when=stop_when)))
    assert said in told
    assert bool(told) == bool(said)
