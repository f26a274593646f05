"""A full disk ends the run with one sentence; with free space, the run resumes without loss."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.cli.inspect import read_audit
from asyncrl.records.run_directory import RunDirectory

pytestmark = pytest.mark.slow("whole runs of real processes")

STEPS = 8
SCRIPT = """
mount -t tmpfs -o size={full} tmpfs runs
{asyncrl} run toy.toml --set steps={steps} --set checkpoint.every_steps=2 2> first.err
echo $? > first.code
cp -r runs/toy first
mount -o remount,size=500m runs
{asyncrl} resume runs/toy 2> second.err
echo $? > second.code
cp -r runs/toy second
"""
"""Mounts a disk in a mount namespace, which ends with the shell, so the script copies the results away."""


@pytest.fixture
def run_on_small_disk(toy: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Runs on a disk of size ``full``, then resumes on a larger one; returns the folder with both results."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "bash"]
    can = [*namespace, "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    if not shutil.which("unshare") or subprocess.run(can, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a disk in a user namespace")
    shutil.copy(toy / "toy.toml", tmp_path)
    (tmp_path / "runs").mkdir()

    def run_on_small_disk(full: str) -> Path:
        script = SCRIPT.format(full=full, steps=STEPS, asyncrl=f"{sys.executable} -m asyncrl")
        subprocess.run([*namespace, "-c", script], cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=250, check=True)
        return tmp_path

    return run_on_small_disk


@pytest.mark.parametrize(
    "full",
    ["400k", *(pytest.param(full, marks=pytest.mark.long("another free space")) for full in ("100k", "700k", "1000k"))],
)
def test_a_run_that_filled_the_disk_reports_it_and_resumes_with_free_space(run_on_small_disk, full):
    left = run_on_small_disk(full)

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
    assert read_audit(directory.path).problems == []


@pytest.mark.long("the other files of a full disk are above")
def test_a_torn_tail_of_a_killed_run_is_reported_as_an_event(start_run):
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


@pytest.mark.long("tests of the ledger's reader damage it as well")
def test_a_damaged_ledger_is_refused_with_the_offset(start_run):
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
