"""An episode in a terminal."""

from asyncrl.cli.episodes import lines
from asyncrl.cli.episodes.lines import end_lines, prompt_lines, reward_line, turn_lines
from asyncrl.messages.trajectory import FROM_PROMPT, Turn

TURNS = [
    Turn(FROM_PROMPT, 0, 7, text="look"),
    Turn(0, 5, 3, observation="right 2", text="no"),
    Turn(0, 5, 3, reward=0.5, call_s=0.25, observation="left 2\nright 3", text="4"),
]


def test_a_turn_has_what_was_said_on_both_sides() -> None:
    assert [line.plain for line in turn_lines(TURNS, first=2)] == [
        "── turn 2, after 0 ── reward 0.5, 3 tokens after 5, 0.25 s",
        "environment  left 2",
        "             right 3",
        "policy       4",
    ]
    assert [line.plain for line in turn_lines(TURNS)][:2] == ["── turn 0 ── 7 tokens", "policy       look"]
    assert list(turn_lines(TURNS, first=3)) == []


def test_the_prompt_stands_before_the_turns() -> None:
    assert [line.plain for line in prompt_lines("How many?", "4")] == [
        "prompt       How many?",
        "answer       4",
    ]
    assert len(list(prompt_lines("How many?"))) == 1


def test_the_end_says_why_and_how_much() -> None:
    stopped, size = end_lines(TURNS, "stop")
    assert stopped.plain == "── stop: the environment, or the policy, ended it"
    assert size.plain.startswith("3 turns in 2 branches, 13 tokens of the policy and 10 of the environment")
    assert "environment.max_turns" in next(end_lines(TURNS, "length")).plain


def test_a_reward_line_equals_the_example() -> None:
    line = reward_line("the environment", 1.0, {"correct": 1.0, "moves": 7.0}).plain
    assert line in (lines.reward_line.__doc__ or "")


def test_what_the_policy_writes_cannot_command_the_terminal() -> None:
    (_, policy) = turn_lines([Turn(FROM_PROMPT, 0, 1, text="\x1b[2Jgone [bold]")])
    assert policy.plain == "policy       \\x1b[2Jgone [bold]"
