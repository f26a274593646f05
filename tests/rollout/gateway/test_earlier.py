from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.rollout.episodes.record import RecordedTurn
from asyncrl.rollout.gateway.earlier import EarlierTurns
from tests.rollout.gateway.doubles import completion, sampled


def turn(parent: int, context: list[int], text: str = "x") -> RecordedTurn:
    return RecordedTurn(parent, context, completion(sampled(text)))


def test_a_turn_is_found_by_what_the_policy_read() -> None:
    turns = [turn(FROM_PROMPT, []), turn(0, [5, 6])]
    earlier = EarlierTurns(turns)
    assert earlier.take(FROM_PROMPT, [7]) is None
    assert earlier.take(FROM_PROMPT, []) == (0, turns[0])
    assert earlier.num_left == 1


def test_children_are_found_wherever_their_parent_is_in_the_new_record() -> None:
    turns = [turn(FROM_NOTHING, [1]), turn(FROM_NOTHING, [2]), turn(1, [5])]
    earlier = EarlierTurns(turns)
    assert earlier.take(FROM_NOTHING, [2]) == (1, turns[1])
    earlier.moved(1, 0)
    assert earlier.take(0, [5]) == (2, turns[2])


def test_a_turn_after_a_new_one_is_not_found() -> None:
    earlier = EarlierTurns([turn(FROM_PROMPT, []), turn(0, [5])])
    assert earlier.take(0, [5]) is None


def test_equal_turns_are_given_in_their_order_and_once() -> None:
    turns = [turn(FROM_PROMPT, [], text) for text in "ab"]
    earlier = EarlierTurns(turns)
    assert [earlier.take(FROM_PROMPT, []) for _ in range(3)] == [(0, turns[0]), (1, turns[1]), None]


def test_without_an_earlier_run_there_is_nothing() -> None:
    assert (EarlierTurns().take(FROM_PROMPT, []), EarlierTurns().num_left) == (None, 0)
