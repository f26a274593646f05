"""The stored form of an unfinished episode."""

import pytest
from msgspec import structs

from asyncrl.engine import Completion
from asyncrl.episodes.environment import Answer
from asyncrl.episodes.record import EpisodeRecord, EpisodeState, RecordedTurn, as_sampled, read, recorded
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_PROMPT, Span


def turn(parent: int, context: list[int], written: list[int], version: int) -> RecordedTurn:
    completion = Completion(
        completion_ids=written,
        behavior_logprobs=[-0.5] * len(written),
        spans=[Span(version, 0, len(written))],
        finish_reason="stop",
        generate_s=0.0,
        mask_counts=[2] * len(written),
        mask_ids=[n for token in written for n in (token, token + 1)],
    )
    return RecordedTurn(parent, context, completion, observation="o", text="t", reward=0.5, call_s=0.1)


FINISHED = [turn(FROM_PROMPT, [], [4, 5], 1), turn(0, [6], [7], 1), turn(0, [8], [9, 9, 9], 2)]
FINISHED[1].completion = structs.replace(FINISHED[1].completion, finish_reason="length")
BEGUN = [turn(2, [1, 1], [3], 3)]
BEGUN[0].completion = structs.replace(BEGUN[0].completion, finish_reason="unfinished")
DRAWS = [0, 3, 1, 2]
for its_draw, one in zip(DRAWS, [*FINISHED, *BEGUN], strict=True):
    one.draw = its_draw
STATE = EpisodeState(num_finished=3, num_answered=2, answer=Answer(reward=1.0), snapshot=b"here", cut=[1])


def test_what_is_stored_is_read_back() -> None:
    stored = as_sampled(EpisodeRecord([2], FINISHED), BEGUN, STATE)
    assert stored is not None
    assert stored.completion.finish_reason == "unfinished"
    resumed = read(stored)
    assert resumed.state == structs.replace(STATE, draws=DRAWS)
    assert list(resumed.finished) == FINISHED
    assert list(resumed.begun) == BEGUN
    assert resumed.num_tokens == 7


def test_turns_of_a_finished_episode_are_read_too() -> None:
    record = EpisodeRecord([2], FINISHED)
    stored = as_sampled(record, [], STATE)
    assert stored is not None
    assert [turn.parent for turn in recorded(stored)] == [turn.parent for turn in FINISHED]


def test_nothing_is_stored_before_the_first_token() -> None:
    assert as_sampled(EpisodeRecord([2]), [], EpisodeState(num_finished=0)) is None


@pytest.mark.parametrize(
    "changes",
    [{"num_finished": 5}, {"num_answered": 4}, {"num_answered": -1}, {"num_finished": -1, "num_answered": -1}],
)
def test_a_state_that_does_not_fit_the_turns_is_damaged(changes: dict[str, int]) -> None:
    stored = as_sampled(EpisodeRecord([2], FINISHED), BEGUN, structs.replace(STATE, **changes))
    assert stored is not None
    with pytest.raises(EngineError, match=r"damaged: .* answered and .* finished turns of 4") as refused:
        read(stored)
    assert refused.value.retryable


@pytest.mark.parametrize("snapshot", [b"", b"\xff\xff", b"\x80"])
def test_bytes_that_are_no_state_are_damaged(snapshot: bytes) -> None:
    stored = as_sampled(EpisodeRecord([2], FINISHED), [], STATE)
    assert stored is not None
    with pytest.raises(EngineError, match="damaged"):
        read(structs.replace(stored, snapshot=snapshot))
