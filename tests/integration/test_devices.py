"""A run on devices as strict as torch's: a tensor of another device would end it."""

from pathlib import Path

import pytest

from asyncrl.config.run_file import load_config
from tests.weights.groups.fake_npu import installed_at

pytestmark = pytest.mark.slow("whole runs of real processes")
ON_NPU = ("trainer.device=npu", "rollout.device=npu", "rollout.replicas=1", 'data.held_out=""')


@pytest.mark.parametrize(
    ("devices", "backend"), [("0,1", "hccl"), pytest.param("0", "shared", marks=pytest.mark.long("one more whole run"))]
)
def test_trainer_and_rollout_share_the_only_device_or_have_their_own(start_run, tmp_path, devices, backend):
    """One device runs the whole loop; with two, weights go from device to device."""
    fake = installed_at(tmp_path)
    path = f"{fake['PYTHONPATH']}:{Path(__file__).parents[2]}"
    names = {"FAKE_NPU": fake["FAKE_NPU"], "PYTHONPATH": path, "ASCEND_RT_VISIBLE_DEVICES": devices}
    run = start_run(*ON_NPU, steps=3, environment=names).end()

    assert (run.code, run.steps_done()) == (0, 3), (run.errors, run.log_tails())
    assert load_config(run.directory.config).weights.backend == backend
    assert not [event for event in run.events if event["event"] == "transfer.failed"]
