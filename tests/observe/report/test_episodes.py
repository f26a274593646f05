"""Episodes in the page, with words that cannot become markup."""

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn
from asyncrl.observe.report.episodes import MAX_CHARS, MAX_TURNS, episodes
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.sampled_episodes import SampledEpisode

TURNS = [
    Turn(FROM_PROMPT, 0, 1, text="<b>look"),
    Turn(0, 1, 1, reward=0.5, observation="left 2", text="4"),
    Turn(FROM_NOTHING, 3, 1, observation="a summary", text="5"),
]


def a_record(*played: SampledEpisode, name: str = "run") -> RunRecord:
    return RunRecord(
        name=name, config={}, summary=None, metrics=[], events=[], pictured=[], notes=[], episodes=list(played)
    )


def an_episode(turns: list[Turn] = TURNS, finish_reason: str = "stop") -> SampledEpisode:
    return SampledEpisode(
        step=3,
        group_id=7,
        index=1,
        prompt="How many?",
        answer="4",
        reward=0.5,
        finish_reason=finish_reason,
        turns=turns,
    )


def test_a_run_without_episodes_has_no_section() -> None:
    assert list(episodes([a_record(), a_record()])) == []


def test_an_episode_is_shown_turn_by_turn_with_branches_and_rewards() -> None:
    found = "\n".join(episodes([a_record(an_episode())]))
    assert "<h2>Episodes</h2>" in found
    assert "7/1: reward 0.5; 3 turns in 2 branches" in found
    assert "&lt;b&gt;look" in found
    assert "<th>turn 2, own context</th><td>a summary</td><td>5</td>" in found
    assert "reward 0.5, 1 token after 1" in found


def test_an_episode_that_a_limit_has_ended_says_so_and_long_ones_are_cut() -> None:
    long = [Turn(place - 1, 0, 1, text="x" * 1000) for place in range(MAX_TURNS + 2)]
    found = "\n".join(episodes([a_record(an_episode(long, "length"), name="one"), a_record(name="two")]))
    assert "reward 0.5, cut by a limit;" in found
    assert "x" * MAX_CHARS + " …" in found
    assert "2 more" in found
    assert "one: one of each of the first groups of step 3" in found
