"""A disk that is full ends the run in one sentence; with space again, the run goes on as if nothing had been."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.cli.inspect import audit_of
from asyncrl.observe.run_directory import RunDirectory

pytestmark = pytest.mark.slow

STEPS = 8
LIFE = """
mount -t tmpfs -o size={full} tmpfs runs
{asyncrl} run toy.toml --set steps={steps} --set checkpoint.every_steps=2 2> first.err
echo $? > first.code
cp -r runs/toy first
mount -o remount,size=500m runs
{asyncrl} resume runs/toy 2> second.err
echo $? > second.code
cp -r runs/toy second
"""
"""A disk of our own, in a namespace of our own: it is gone when the shell ends, so what was on it is copied away."""


@pytest.fixture
def live(toy: Path, tmp_path: Path):
    """A run on a disk of ``full``, resumed on a larger one: the folder in which it left its two ends."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "bash"]
    can = [*namespace, "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    if not shutil.which("unshare") or subprocess.run(can, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody but root mount a disk in a namespace of his own")
    shutil.copy(toy / "toy.toml", tmp_path)
    (tmp_path / "runs").mkdir()

    def live(full: str) -> Path:
        script = LIFE.format(full=full, steps=STEPS, asyncrl=f"{sys.executable} -m asyncrl")
        subprocess.run([*namespace, "-c", script], cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=250, check=True)
        return tmp_path

    return live


@pytest.mark.parametrize("full", ["100k", "400k", "700k", "1000k"])
def test_a_run_that_filled_the_disk_says_so_and_is_resumed_with_space(live, full):
    left = live(full)

    assert int((left / "first.code").read_text()) != 0
    (sentence,) = (left / "first.err").read_text().splitlines()
    assert "cannot" in sentence
    assert any(words in sentence for words in ("No space left on device", "disk is full", "disk I/O error")), sentence
    assert "free space or repair the disk" in sentence
    assert all((folder / "manifest.json").is_file() for folder in (left / "first" / "checkpoints").glob("step_*"))

    assert (left / "second.err").read_text() == ""
    assert int((left / "second.code").read_text()) == 0
    directory = RunDirectory(left / "second")
    summary = directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.steps) == ("finished", STEPS)
    assert [line["step"] for line in directory.read_metrics()] == list(range(STEPS))
    assert audit_of(directory.path).problems == []


def test_a_torn_tail_of_a_killed_run_is_told_in_its_events(start_run):
    run = start_run("checkpoint.every_steps=2", steps=STEPS)
    run.until(lambda: run.steps_done() >= 3)
    run.kill_all()
    with run.directory.events.open("ab") as events:
        events.write(b'{"event":"half of o')

    run.resume()
    assert run.end().code == 0, run.errors

    (cut,) = [event for event in run.events if event["event"] == "events.cut"]
    assert cut["num_bytes"] == 19
    run.assert_adds_up()


def test_a_damaged_ledger_is_refused_with_its_offset(start_run):
    run = start_run(steps=STEPS)
    run.until(lambda: run.steps_done() >= 2)
    run.kill_all()
    wal = run.directory.path / "ledger.sqlite-wal"
    content = bytearray(wal.read_bytes())
    content[1000] ^= 1
    wal.write_bytes(content)

    run.resume()
    assert run.end().code != 0

    (sentence,) = run.errors.splitlines()
    assert f"{wal.name} is damaged at offset 32, in what was already on disk" in sentence
    assert "restore the ledger's files from a copy" in sentence
