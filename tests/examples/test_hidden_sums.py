"""examples/hidden_sums.py, played by a policy that is always right."""

from itertools import islice
from typing import Any

import pytest

from asyncrl.environment import Said, Step, Task
from asyncrl.tools.toy.hidden_sums import HiddenSum, problems
from tests.examples.conftest import ROOT, load_example
from tests.examples.sums_player import next_turn

TOM = HiddenSum("Tom", (5, -3, 4))
GUESSING = 0.12
"""Share of answers that may be right by chance."""

example = load_example("hidden_sums")


def task(problem: HiddenSum, seed: int = 0) -> Task:
    return Task(
        messages=[{"role": "user", "content": problem.prompt}],
        answer=problem.answer,
        extra={"amounts": " ".join(f"{amount:+d}" for amount in problem.amounts)},
        seed=seed,
    )


def boxes(problem: HiddenSum = TOM, seed: int = 0, **options: Any) -> Any:
    environment = example.Boxes(**options)
    environment.reset(task(problem, seed))
    return environment


def heard(environment: Any, text: str) -> str:
    """Observation after one turn."""
    step: Step = environment.step(Said(text))
    assert not step.done
    return str(step.messages[0]["content"])


def play(problem: HiddenSum, seed: int = 0, **options: Any) -> tuple[float, list[list[str]]]:
    """Reward, and the contents of each context."""
    environment, contexts = boxes(problem, seed, **options), [[problem.prompt]]
    while True:
        said = next_turn(contexts[-1])
        step = environment.step(Said(said))
        contexts[-1].append(said)
        if step.done:
            return step.reward, contexts
        contents = [message["content"] for message in step.messages]
        if step.restart:
            contexts.append(contents)
        else:
            contexts[-1] += contents


def test_looks_and_sums_are_answered_as_the_example_says() -> None:
    reward, [contents] = play(TOM)
    assert "".join(contents[1:]) == " a ?+50+5 !=5 b ?-35-3 !=2 c ?+42+4 !=6 #### 6"
    assert reward == 1.0


def test_its_episodes_are_those_of_the_demonstrations() -> None:
    for problem in islice(problems(0, "held_out"), 50):
        _, [contents] = play(problem)
        assert contents[1:] == [passage.text for passage in problem.chain()]


@pytest.mark.parametrize("options", [{}, {"compact_every": 4}, {"compact_every": 3}, {"flaky": 0.3}])
def test_a_policy_that_makes_no_mistake_is_always_right(options: dict[str, Any]) -> None:
    assert {play(problem, **options)[0] for problem in islice(problems(0, "held_out"), 50)} == {1.0}


def test_with_other_amounts_in_the_boxes_it_is_right_by_chance() -> None:
    rewards = [play(problem, seed, swapped=True)[0] for seed, problem in enumerate(islice(problems(0, "train"), 500))]
    assert sum(rewards) / len(rewards) < GUESSING


def test_the_policy_has_room_for_mistakes_within_the_turns_of_the_run_file() -> None:
    turns = [sum(map(len, play(problem)[1])) // 2 for problem in islice(problems(0, "train"), 200)]
    assert max(turns) == 13


@pytest.mark.parametrize(
    "text", [" a !", "+5 ?", "5 !", " z ?", " ?", " a b ?", "0+5 ?", "0-5 !", "99+5 !", "0+5+4 !", "#### 6 !"]
)
def test_a_malformed_call_is_answered_with_an_error(text: str) -> None:
    assert heard(boxes(), text) == " error"


@pytest.mark.parametrize("text", [" #### 5", " ####", " a", "6", "", " #### 6 6", " a #### 6"])
def test_anything_else_ends_the_episode_without_a_reward(text: str) -> None:
    assert boxes().step(Said(text)) == Step(reward=0.0, done=True)


def test_a_summary_lists_boxes_that_were_not_added() -> None:
    """The amount of b was seen, but the summary does not hold it."""
    environment = boxes(compact_every=3)
    heard(environment, " a ?")
    heard(environment, "0+5 !")
    step = environment.step(Said(" b ?"))
    assert step == Step([{"role": "user", "content": "Tom so far 5 b c How many now?"}], restart=True)
    assert heard(environment, "5+1 !") == "=6"
    assert heard(environment, " b ?") == "-3", "and b is still there, because nobody looked before adding"


def test_the_same_seed_and_turns_get_the_same_answers_and_another_seed_others() -> None:
    turns = [" a ?", " b ?", " c ?"] * 5

    def answers(seed: int, **options: Any) -> list[str]:
        environment = boxes(TOM, seed, **options)
        return [heard(environment, turn) for turn in turns]

    for options in ({"flaky": 0.5}, {"swapped": True}):
        assert answers(1, **options) == answers(1, **options) != answers(2, **options)


def test_another_reset_begins_anew() -> None:
    environment = boxes(flaky=0.5)
    first = [heard(environment, " a ?") for _ in range(10)]
    environment.reset(task(TOM))
    assert [heard(environment, " a ?") for _ in range(10)] == first


def test_the_command_in_its_docstring_names_it() -> None:
    text = (ROOT / "examples" / "hidden_sums.py").read_text(encoding="utf-8")
    assert "examples/hidden_sums.py:Boxes" in text
    assert "examples/hidden_sums.py:Boxes" in (ROOT / "conf" / "hidden-sums.toml").read_text(encoding="utf-8")
