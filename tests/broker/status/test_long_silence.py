"""A long silence is told about, and says what the run does."""

from asyncrl.broker.status.long_silence import LongSilence, sentence
from asyncrl.messages.session import Beat
from asyncrl.messages.trajectory import Unit
from tests.broker.driver import Cluster
from tests.broker.test_scheduler import HELD_OUT, a_published, rollouts


def told(silence: LongSilence, mark: int, start_s: int, end_s: int) -> list[float]:
    return [seconds for now_s in range(start_s, end_s) if (seconds := silence.due(mark, now_s))]


def test_a_silence_is_told_about_after_doubling_times() -> None:
    silence = LongSilence(0.0)
    assert told(silence, 0, 0, 100) == [15, 30, 60]


def test_one_is_long_if_it_is_longer_than_those_before() -> None:
    silence = LongSilence(0.0)
    for step in range(5):  # a step every 30 s
        told(silence, step, 30 * step, 30 * step + 30)
    assert told(silence, 5, 150, 400) == [90, 180]


def after(cluster: Cluster, seconds: float) -> str:
    (rollout,) = rollouts(cluster)
    for _ in range(int(4 * seconds)):
        cluster.tick(0.25, beats={rollout.peer: Beat(doing="sampling", progress=3)})
    return sentence(cluster.scheduler, seconds, cluster.now_s)


def test_the_sentence_names_what_the_trainer_waits_for_and_what_stands_still() -> None:
    assert after(a_published(), 15) == (
        "no news for 15 s: trainer is waiting (step 1: 0 of 2 groups complete, the rest is sampled); "
        "a has been sampling for 15 s without a token"
    )


def test_the_sentence_tells_how_far_an_evaluation_is() -> None:
    cluster = a_published(HELD_OUT, num_held_out=3)
    (rollout,) = rollouts(cluster)
    rollout.finish(Unit(0, 0, "held_out"))
    cluster.exchange()
    assert after(cluster, 15).startswith("no news for 15 s: evaluation of v0, ")
