from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="needs the extra `tracking`")

from asyncrl.records.run_directory import RunSummary
from asyncrl.records.trackers import RunDescription, TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_two_processes_write_one_run(tracked: RunDescription, ended: RunSummary) -> None:
    first = TensorBoard()
    first.start(tracked)
    first.log(1, {"train/reward": 0.25, "train/loss": 1.0})
    second = TensorBoard()  # The first was killed.
    second.start(tracked)
    second.log(2, {"train/reward": 0.5})
    second.event(2, "node.lost", {"node": "r-0", "cause": "silent"})
    second.finish(ended)

    found = read(tracked.folder / "events")
    assert [(point.step, point.value) for point in found.Scalars("train/reward")] == [(1, 0.25), (2, 0.5)]
    assert [(point.step, point.value) for point in found.Scalars("train/loss")] == [(1, 1.0)]
    (lost,) = found.Tensors("events/node.lost")
    assert (lost.step, lost.tensor_proto.string_val) == (2, [b'{"node":"r-0","cause":"silent"}'])
    assert b"trainer.lr = 0.001" in found.Tensors("config")[0].tensor_proto.string_val[0]
    assert b'"status": "finished"' in found.Tensors("summary")[0].tensor_proto.string_val[0]


def test_the_folder_can_be_set(tracked: RunDescription, tmp_path: Path) -> None:
    tracker = TensorBoard(log_dir=str(tmp_path / "elsewhere"))
    tracker.start(tracked)
    tracker.log(1, {"train/reward": 0.25})
    tracker.finish(None)
    assert read(tmp_path / "elsewhere").Scalars("train/reward")[0].value == 0.25
