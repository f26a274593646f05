"""A node that works is told from one that only beats."""

from asyncrl.broker.nodes.standstill import Standstill
from asyncrl.config.sections.broker import Broker
from asyncrl.messages.session import Beat
from asyncrl.messages.words import Activity

LIMITS = Broker(stall_s=20.0, stall_limit_s=600.0)


def after(*, seconds: float, doing: Activity, cores: float = 0.0, tokens_per_s: float = 0.0) -> Standstill:
    """Standstill of a node that has beaten for so long every half second."""
    still = Standstill(LIMITS, 0.0)
    for beat in range(int(2 * seconds) + 1):
        still.heard(Beat(doing=doing, cores=cores, progress=int(tokens_per_s * beat / 2)), beat / 2)
    return still


def test_work_that_makes_progress_is_never_stalled() -> None:
    still = after(seconds=3600, doing="sampling", tokens_per_s=2)
    assert not still.is_stalled(3600)
    assert still.seconds(3600) == 0


def test_a_node_that_computes_for_minutes_before_its_next_token_is_not_stalled() -> None:
    still = after(seconds=599, doing="sampling", cores=0.9)
    assert not still.is_stalled(599)
    assert still.clause(599) == "sampling for 599 s without a token"


def test_a_node_that_neither_computes_nor_makes_progress_is_stalled() -> None:
    still = after(seconds=20, doing="training", cores=0.01)
    assert not still.is_stalled(19.9)
    assert still.is_stalled(20)
    assert not still.is_over_limit(20)
    assert still.sentence(20) == "training for 20 s without a micro-batch, and it has computed nothing for 20 s"


def test_one_that_computed_for_long_and_then_hangs_is_stalled_as_soon() -> None:
    still = after(seconds=100, doing="sampling", cores=1.0)
    for second in range(100, 121):
        still.heard(Beat(doing="sampling"), second)
    assert not still.is_stalled(119)
    assert still.is_stalled(120)


def test_computing_without_end_is_no_progress() -> None:
    still = after(seconds=600, doing="training", cores=1.0)
    assert still.is_over_limit(600)
    assert still.is_stalled(600)
    assert still.sentence(600) == "training for 600 s without a micro-batch, though it computes"


def test_a_node_that_waits_has_nothing_to_make_progress_with() -> None:
    waiting: tuple[Activity, ...] = ("idle", "environment", "serving users", "asleep", "fetching", "publishing")
    assert not any(after(seconds=3600, doing=doing).is_stalled(3600) for doing in waiting)


def test_one_token_is_progress() -> None:
    still = after(seconds=30, doing="sampling")
    assert still.is_stalled(30)
    still.heard(Beat(doing="sampling", progress=1), 30.5)
    assert not still.is_stalled(31)


def test_time_in_which_nobody_could_be_heard_does_not_count() -> None:
    still = after(seconds=10, doing="sampling")
    still.excuse(1000)
    assert not still.is_stalled(1015)


def test_a_node_is_idle_from_the_last_beat_that_said_it_does_anything() -> None:
    still = after(seconds=10, doing="environment")
    for second in range(11, 21):
        still.heard(Beat(doing="idle"), second)
    assert still.idle_s(20) == 10
    still.heard(Beat(doing="idle", progress=1), 21)
    still.excuse(5.0)
    assert still.idle_s(27) == 1
