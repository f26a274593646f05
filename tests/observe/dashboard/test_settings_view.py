from typing import Any

from asyncrl.observe.dashboard.settings_view import settings
from asyncrl.observe.run_record import RunRecord


def shown(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    record = RunRecord(name="a", config=config, summary=None, metrics=[], events=[], pictured=[], notes=[])
    return {row["key"]: row for row in settings(record)}


def test_every_setting_has_value_default_and_meaning_and_changed_ones_are_marked() -> None:
    rows = shown({"run.steps": 40, "run.seed": 0, "model.path": "m", "run.epochs": ""})
    assert (rows["run.steps"]["value"], rows["run.steps"]["default"], rows["run.steps"]["is_changed"]) == (
        "40",
        "60",
        True,
    )
    assert rows["run.steps"]["meaning"].startswith("Optimizer steps to train")
    assert (rows["run.seed"]["is_changed"], rows["run.epochs"]["is_changed"]) == (False, False)
    assert (rows["model.path"]["default"], rows["model.path"]["is_changed"]) == ("required", False)
    assert rows["schedule.staleness"]["value"] == rows["schedule.staleness"]["default"]
    assert len(rows) > 150


def test_a_table_with_keys_of_its_own_is_one_setting() -> None:
    rows = shown({"model.overrides.rope_scaling.factor": 2, "model.overrides.a": "b"})
    assert rows["model.overrides"]["value"] == '{"rope_scaling.factor":2,"a":"b"}'
    assert rows["model.overrides"]["is_changed"]


def test_secrets_are_hidden() -> None:
    rows = shown({"trackers.wandb_api_key": "hunter2", "reward.options.token": "hunter2", "a.password": "hunter2"})
    assert "hunter2" not in str(rows)
    assert "hidden" in str(rows)


def test_keys_that_this_version_does_not_know_are_shown() -> None:
    assert shown({"future.setting": [1]})["future.setting"]["value"] == "[1]"
