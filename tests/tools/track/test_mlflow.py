import pytest

pytest.importorskip("mlflow", reason="needs the extra `tracking`")
pytest.importorskip("sqlalchemy", reason="mlflow-skinny keeps no database of its own")

from asyncrl.records.run_directory import RunSummary
from asyncrl.records.trackers import MLflow, RunDescription

pytestmark = pytest.mark.filterwarnings("ignore")


def test_two_processes_write_one_run(tracked: RunDescription, ended: RunSummary) -> None:
    from mlflow import MlflowClient

    first = MLflow()
    first.start(tracked)
    first.log(1, {"train/reward": 0.25})
    second = MLflow()  # The first was killed.
    second.start(tracked)
    second.log(2, {"train/reward": 0.5, "eval/pass@4": 0.75})
    second.event(2, "node.lost", {"node": "r-0"})
    second.finish(ended)

    client = MlflowClient(tracking_uri=f"sqlite:///{tracked.folder / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("asyncrl").experiment_id])
    history = client.get_metric_history(run.info.run_id, "train/reward")
    assert [(point.step, point.value) for point in history] == [(1, 0.25), (2, 0.5)]
    assert run.data.metrics["eval/pass_4"] == 0.75, "their names have no @"
    assert run.data.params["trainer.lr"] == "0.001"
    assert run.data.tags["event.node.lost"] == '{"step":2,"node":"r-0"}'
    assert (run.info.run_name, run.info.status) == ("tiny", "FINISHED")
