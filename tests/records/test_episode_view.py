"""An episode as people read it."""

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn
from asyncrl.records import episode_view
from asyncrl.records.episode_view import summary, views

TURNS = [
    Turn(FROM_PROMPT, 0, 7, text="look"),
    Turn(0, 5, 3, reward=0.5, call_s=0.25, observation="left 2", text="4"),
    Turn(0, 5, 1, observation="left 2", text="5", is_trained=False),
    Turn(FROM_NOTHING, 8, 20, observation="a summary", text="6", call_s=0.15),
    Turn(FROM_PROMPT, 0, 1, text="again"),
]


def test_a_turn_says_what_it_follows_unless_that_is_the_turn_before() -> None:
    assert [view.title for view in views(TURNS)] == [
        "turn 0",
        "turn 1",
        "turn 2, after 0",
        "turn 3, own context",
        "turn 4, after the prompt",
    ]


def test_a_turn_has_its_texts_and_its_facts() -> None:
    found = list(views(TURNS))
    assert [(view.observation, view.text) for view in found[:2]] == [("", "look"), ("left 2", "4")]
    assert [view.facts for view in found[:4]] == [
        "7 tokens",
        "reward 0.5, 3 tokens after 5, 0.25 s",
        "1 token after 5, not trained",
        "20 tokens after 8, 0.15 s",
    ]


def test_the_summary_equals_the_example() -> None:
    line = summary(TURNS[:-1])
    assert line == ("4 turns in 3 branches, 31 tokens of the policy and 18 of the environment, 0.4 s, turn rewards 0.5")
    assert line in (episode_view.summary.__doc__ or "")
    assert summary(TURNS[:1]).startswith("1 turn, 7 tokens of the policy and 0 of the environment")


def test_seats_are_named_where_there_are_several() -> None:
    turns = [
        Turn(FROM_PROMPT, 0, 1, reward=1.0),
        Turn(FROM_NOTHING, 2, 1, reward=-1.0, seat=1),
        Turn(0, 1, 1, reward=0.5),
        Turn(1, 1, 1, seat=1),
    ]
    assert [view.title for view in views(turns)] == [
        "turn 0 of seat 0",
        "turn 1 of seat 1, own context",
        "turn 2 of seat 0, after 0",
        "turn 3 of seat 1, after 1",
    ]
    assert summary(turns).endswith("turn rewards 1.5 of seat 0, -1 of seat 1")
