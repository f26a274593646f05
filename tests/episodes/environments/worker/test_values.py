"""Return values of environments: what is taken, and the error for what is not."""

from typing import Any

import pytest

from asyncrl.environment import Step
from asyncrl.episodes.worker.values import MOST, BadValue, reset_of, score_of, step_of

MESSAGE = {"role": "user", "content": "hello"}


def test_a_step_and_a_dict_with_the_same_keys_mean_the_same() -> None:
    expected = {"messages": [MESSAGE], "reward": 0.5, "done": True, "restart": False, "seat": 0}

    assert step_of(Step(messages=[MESSAGE], reward=0.5, done=True), "step") == expected
    assert step_of({"messages": [MESSAGE], "reward": 0.5, "done": True}, "step") == expected
    assert step_of({}, "step") == {"messages": [], "reward": 0.0, "done": False, "restart": False, "seat": 0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "step returned None, expected a Step, or a dict"),
        (([MESSAGE], 0.5, True), "expected a Step, or a dict"),
        ({"observation": "x"}, "expected a Step, or a dict"),
        ({"messages": "hello"}, "the messages 'hello', expected a list"),
        ({"messages": ["hello"]}, "the message 'hello', expected {\"role\""),
        ({"messages": [{"role": "robot", "content": ""}]}, "expected"),
        ({"messages": [{"role": "user", "content": 5}]}, "the content 5, expected text"),
        ({"reward": float("nan")}, "step returned the reward nan, expected a finite number"),
        ({"reward": "1"}, "expected a finite number"),
        ({"reward": 1e30}, "the reward is 1e+30, expected a finite number of at most 1e+06"),
        ({"done": 1}, "done 1, expected True or False"),
        ({"reward": [0.0, "1"]}, "the reward [0.0, '1'], and in it '1', expected a finite number"),
        ({"reward": [0.0, 1e30]}, "the reward is 1e+30, expected a finite number of at most 1e+06"),
        ({"seat": -1}, "step returned the seat -1, expected 0, 1, ..."),
        ({"seat": True}, "step returned the seat True, expected 0, 1, ..."),
    ],
)
def test_any_other_value_is_one_clear_error(value: Any, message: str) -> None:
    with pytest.raises(BadValue) as caught:
        step_of(value, "step")
    assert message in str(caught.value)


def test_a_reward_may_be_a_list_of_one_for_each_seat() -> None:
    assert step_of(Step(reward=(1, -1), seat=1), "step")["reward"] == [1.0, -1.0]
    assert score_of([1, True], "the program") == {"reward": [1.0, 1.0], "metrics": {}}
    assert score_of({"score": [0.5, 0.0], "n": 1}, "score") == {"reward": [0.5, 0.0], "metrics": {"n": 1.0}}


def test_pictures_leave_the_worker_in_base64() -> None:
    content = [{"type": "text", "text": "see"}, {"type": "image", "data": b"\x89PNG"}]
    expected = [{"type": "text", "text": "see"}, {"type": "image", "data": "iVBORw=="}]
    for given in (content, tuple(content), [content[0], {"type": "image", "data": bytearray(b"\x89PNG")}]):
        found = reset_of([{"role": "user", "content": given}])
        assert found == {"messages": [{"role": "user", "content": expected}]}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("see", "with the part 'see', expected {"),
        ({"type": "video", "data": b""}, "with the part {'type': 'video'"),
        ({"type": "image", "data": "screen.png"}, "'screen.png'}, expected {"),
        ({"type": "text", "text": 5}, "'text': 5}, expected {"),
    ],
)
def test_any_other_part_is_one_clear_error(part: Any, message: str) -> None:
    with pytest.raises(BadValue) as caught:
        reset_of([{"role": "user", "content": [part]}])
    assert message in str(caught.value)
    assert '{"type": "image", "data": bytes of a file}' in str(caught.value)


def test_pictures_that_no_frame_has_room_for_are_an_error_of_the_environment() -> None:
    half = {"role": "user", "content": [{"type": "image", "data": bytes(MOST // 8 * 3)}]}
    assert len(reset_of([half])["messages"][0]["content"][0]["data"]) == MOST // 2
    with pytest.raises(BadValue, match="reset returned pictures of 100,663,296 characters in base64, expected at most"):
        reset_of([half, half, half])


def test_reset_may_return_nothing_or_messages() -> None:
    assert reset_of(None) == {"messages": []}
    assert reset_of([MESSAGE]) == {"messages": [MESSAGE]}
    assert reset_of(Step(messages=[MESSAGE]))["messages"] == [MESSAGE]


def test_a_score_is_a_number_or_a_dict_or_nothing() -> None:
    assert score_of(None, "score") == {"reward": None, "metrics": {}}
    assert score_of(True, "score") == {"reward": 1.0, "metrics": {}}
    assert score_of({"score": 2, "turns": 3}, "score") == {"reward": 2.0, "metrics": {"turns": 3.0}}
    assert score_of({"turns": 3}, "score") == {"reward": None, "metrics": {"turns": 3.0}}
    with pytest.raises(BadValue, match="score returned 'good', expected a finite number"):
        score_of("good", "score")


def test_the_reward_of_an_episode_may_be_called_score_or_reward() -> None:
    assert score_of({"reward": 2, "turns": 3}, "score") == {"reward": 2.0, "metrics": {"turns": 3.0}}
    with pytest.raises(BadValue, match="the program returned both score and reward"):
        score_of({"reward": 2, "score": 1}, "the program")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1e30, "the reward is 1e+30"),
        ({"score": 1.0, "bytes": 1e30}, "metric 'bytes' is 1e+30"),
        ({f"m{number}": 1.0 for number in range(65)}, "there are 65 metrics, expected at most 64"),
        ({"": 1.0}, "a metric has the name ''"),
    ],
)
def test_a_score_that_no_trajectory_may_have_is_refused_where_it_is_returned(value: Any, message: str) -> None:
    with pytest.raises(BadValue) as caught:
        score_of(value, "score")
    assert message in str(caught.value)
