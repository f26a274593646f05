"""A trainer that fails twice at one step for one reason ends the run; anything else is tried again."""

import pytest

from asyncrl.broker.step_failures import StepFailures
from asyncrl.errors import RunFailed

OOM = "OutOfMemoryError: tried to allocate 2.5 GiB, 1.1 GiB free"


def test_the_second_failure_for_the_same_reason_ends_the_run_in_one_sentence() -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    with pytest.raises(RunFailed) as raised:
        failures.failed(12, OOM)
    assert str(raised.value) == (
        f"the trainer failed twice at step 12 for the same reason: {OOM}; mend the cause and resume the run, or have "
        f"it leave out the batch of that step: asyncrl resume RUN --skip-step 12"
    )


def test_reasons_that_differ_in_numbers_alone_are_the_same() -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    with pytest.raises(RunFailed):
        failures.failed(12, OOM.replace("1.1", "0.9"))


@pytest.mark.parametrize(("step", "reason"), [(12, "ValueError: no tokens"), (13, OOM)])
def test_another_reason_and_another_step_are_tried_again(step: int, reason: str) -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    failures.failed(step, reason)
    with pytest.raises(RunFailed):
        failures.failed(12, OOM)


def test_a_step_that_was_done_since_has_not_failed() -> None:
    failures = StepFailures()
    failures.failed(12, OOM)
    failures.done(12)
    failures.failed(12, OOM)
