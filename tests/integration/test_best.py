"""The checkpoint with the best evaluation is kept to the end of the run."""

import msgspec
import pytest

from asyncrl.files.checkpoints import BEST
from asyncrl.trainer.checkpoints.checkpoint import read_manifest, verify
from asyncrl.trainer.checkpoints.writer import Best

pytestmark = pytest.mark.slow("whole runs of real processes")


@pytest.mark.long("one more whole run")
def test_the_best_checkpoint_of_a_run_is_kept_and_recorded(start_run):
    settings = ("checkpoint.every_steps=3", "checkpoint.keep=2", "checkpoint.keep_best=true")
    run = start_run(*settings, "evaluation.every_versions=3", steps=15).end()
    assert run.code == 0, (run.errors, run.output)

    folder = run.directory.checkpoints
    best = msgspec.json.decode((folder / BEST).read_bytes(), type=Best)
    results = {
        event["policy_version"]: event["accuracy"]
        for event in run.events
        if event["event"] == "eval.finished" and event["policy_version"] in (3, 6, 9, 12, 15)
    }
    assert best.value == max(results.values())
    assert results[best.policy_version] == best.value
    kept = {int(path.name.removeprefix("step_")) for path in folder.glob("step_*")}
    assert kept == {best.step, 12, 15}
    manifest = verify(folder / f"step_{best.step:06d}")
    assert (manifest.step, manifest.policy_version) == (best.step, best.policy_version)
    assert read_manifest(folder / "step_000015").step == 15
