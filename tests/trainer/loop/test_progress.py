"""A trainer's totals grow with its steps and transfers."""

from asyncrl.messages.weights import Transferred
from asyncrl.observe.metrics.table import METRICS
from asyncrl.trainer.loop.progress import Progress

STEP = {"num_tokens": 100.0, "loss": -0.25, "grad_norm": 3.0, "lr": 1e-5}


def values(progress: Progress) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("asyncrl_trainer_"), *sample.labels.values()): sample.value for sample in progress
    }


def test_tokens_are_summed_and_the_last_step_is_shown():
    progress = Progress()
    progress.stepped(STEP)
    progress.stepped(STEP | {"loss": 0.5})
    found = values(progress)
    assert (found["steps_total",], found["tokens_total",], progress.num_tokens) == (2, 200, 200)
    assert (found["loss",], found["learning_rate",]) == (0.5, 1e-5)


def test_transfers_are_summed_and_the_last_one_is_kept_for_the_line_of_the_next_step():
    progress = Progress()
    assert progress.last_publish.seconds == 0.0
    for version in (1, 2):
        progress.published(Transferred(1, version, 0.5 * version, 1000))
    found = values(progress)
    assert (found["publishes_total",], found["publish_bytes_total",], found["publish_seconds_total",]) == (2, 2000, 1.5)
    assert progress.last_publish.policy_version == 2


def test_before_the_first_step_there_is_no_loss():
    assert ("loss",) not in values(Progress())
    assert all(sample.name in METRICS for sample in Progress())
