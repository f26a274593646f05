"""Dead letters and their dataset rows."""

import pytest

from asyncrl.broker.ledger.dead_letters import DeadLetter, dead_letters
from asyncrl.broker.ledger.records import Admitted, AnyRecord, FailedAttempt
from asyncrl.messages.trajectory import Unit


def test_a_dead_letter_names_the_row_of_its_prompt():
    records: list[AnyRecord] = [
        Admitted(7, epoch=1, row=42, policy_version=3),
        FailedAttempt(Unit(7, 2), "rollout", "out of memory", 1, False),
        FailedAttempt(Unit(7, 2), "rollout", "out of memory again", 2, True),
    ]
    assert dead_letters(records) == [
        DeadLetter(
            split="train",
            group_id=7,
            index=2,
            epoch=1,
            row=42,
            stage="rollout",
            attempts=2,
            reason="out of memory again",
        )
    ]


@pytest.mark.parametrize(("recorded", "row"), [(5, 5), (0, 0), (-1, None)])
def test_a_held_out_dead_letter_names_its_own_row_if_it_was_recorded(recorded: int, row: int | None):
    records: list[AnyRecord] = [
        Admitted(7, epoch=1, row=42, policy_version=3),
        FailedAttempt(Unit(7, 0, "held_out"), "reward", "hung", 1, True, recorded),
    ]
    (letter,) = dead_letters(records)
    assert (letter.split, letter.epoch, letter.row) == ("held_out", None, row)


def test_failures_that_were_tried_again_are_no_dead_letters():
    assert dead_letters([FailedAttempt(Unit(0, 0), "reward", "hung", 1, False)]) == []
