"""When the broker asks for another staleness, and who decides about it after that."""

from asyncrl.broker.staleness_control import BY, KEY, StalenessControl, steps_between
from tests.broker.driver import Cluster, a_config

AUTO = a_config(run={"steps": 60}, schedule={"groups_per_step": 2, "group_size": 2, "staleness": "auto"})


def set_staleness(cluster: Cluster, value: float | str, by: str) -> None:
    scheduler = cluster.scheduler
    cluster._run(lambda: scheduler.set_settings({KEY: value}, by=by, at_s=1.0, now_s=cluster.now_s))


def test_a_plan_is_fitted_after_enough_steps_and_not_when_few_are_left() -> None:
    control, every = StalenessControl(0), steps_between(AUTO.schedule)
    assert not control.is_due(AUTO, every - 1)
    assert control.is_due(AUTO, every)
    control.answered(every + 3)
    assert not control.is_due(AUTO, 2 * every + 2)
    assert control.is_due(AUTO, 2 * every + 3)
    assert not control.is_due(AUTO, AUTO.run.steps - every + 1)


def test_a_larger_window_takes_more_steps_to_settle() -> None:
    wide = a_config(schedule={"groups_per_step": 2, "staleness": 7.0}).schedule
    assert steps_between(wide) > steps_between(AUTO.schedule)


def test_the_run_begins_with_one_version_ahead() -> None:
    cluster = Cluster(AUTO)
    assert cluster.scheduler.window.size == 4
    assert cluster.scheduler.settings.is_auto


def test_the_broker_goes_on_choosing_until_an_operator_sets_a_number_and_again_when_told_to() -> None:
    cluster = Cluster(AUTO)
    settings = cluster.scheduler.settings
    set_staleness(cluster, 4.0, BY)
    assert (settings.is_auto, cluster.scheduler.window.size) == (True, 10)
    set_staleness(cluster, 0.0, "alice")
    assert (settings.is_auto, cluster.scheduler.window.size) == (False, 2)
    set_staleness(cluster, "auto", "alice")
    assert (settings.is_auto, cluster.scheduler.window.size) == (True, 4)


def test_a_restarted_broker_knows_who_decides() -> None:
    for by, is_auto in ((BY, True), ("alice", False)):
        cluster = Cluster(AUTO)
        set_staleness(cluster, 2.0, by)
        cluster.commit()
        again = Cluster(AUTO, before=cluster).scheduler
        assert (again.settings.is_auto, again.window.size) == (is_auto, 6)
