"""A run without a checkpoint says when its first one comes, and one that is paused what ends that."""

import pytest

from asyncrl.records.resuming import no_checkpoint


@pytest.mark.parametrize(("every", "steps"), [(20, 0), (20, 20), (0, 300), (-1, 300)])
def test_before_it_the_setting_says_when_it_comes(every: int, steps: int) -> None:
    when = "step 20" if every > 0 else "the last step"
    assert no_checkpoint({"checkpoint.every_steps": every}, steps, is_finished=False) == (
        f"none yet: the first one comes after {when} (checkpoint.every_steps = {every}), or with `asyncrl stop`; until "
        "then a resume begins from the base model, with the same batches"
    )


@pytest.mark.parametrize(("every", "steps", "is_finished"), [(20, 21, False), (0, 300, True)])
def test_after_it_the_trainers_machine_has_it(every: int, steps: int, is_finished: bool) -> None:
    found = no_checkpoint({"checkpoint.every_steps": every}, steps, is_finished=is_finished)
    assert found.startswith("none here: if the trainer ran on another machine, the event checkpoint.written")


def test_a_configuration_that_cannot_be_read_tells_nothing() -> None:
    assert no_checkpoint({}, 3, is_finished=False).startswith("none, and the configuration")
