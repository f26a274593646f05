"""What the episodes of one rollout share."""

import asyncio

import pytest

from asyncrl.broker.leases.lease_terms import sampling_seed
from asyncrl.config.sections.environment import Environment
from asyncrl.environment.interface import Answer, TaskInput
from asyncrl.messages.trajectory import Prompt, Sampling, Unit
from asyncrl.rollout.episodes.episode import Episode
from asyncrl.rollout.episodes.episodes import Episodes
from tests.rollout.episodes.stage import Counter, StagedEnvironments, WordEngine, WordSeam, ids

ENVIRONMENT = Environment(function="till.py:Till", max_turns=8, max_tokens=100)


def test_tools_of_the_environment_are_shown_with_the_prompt() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    shown = Episodes(ENVIRONMENT, StagedEnvironments(tools=[tool]), WordSeam(), run="run").shown(
        Prompt(text="how many")
    )
    assert shown.tools == '[{"type":"function","function":{"name":"look","parameters":{}}}]'
    assert Episodes(ENVIRONMENT, StagedEnvironments(), WordSeam(), run="run").shown(Prompt(text="a")).tools == ""


class Noting(Counter):
    tasks: list[TaskInput] = []

    def reset(self, task: TaskInput) -> Answer:
        self.tasks.append(task)
        return super().reset(task)


def begin(unit: Unit, prompt: Prompt, seed: int | None) -> Episode:
    engine = WordEngine(lambda before: "done")
    return Episodes(ENVIRONMENT, StagedEnvironments(make=Noting), WordSeam(), run="run").begin(
        unit, prompt, ids("a"), sample=engine.sample, written=engine.written, sampling=Sampling(4), seed=seed
    )


def test_the_environment_gets_the_row_and_a_seed_that_is_the_same_each_time() -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "how many"}]
    prompt = Prompt(chat=chat, answer="1", data_source="toy", extra={"amounts": "+1"})
    Noting.tasks.clear()
    for prompt_of_the_row, seed in ((prompt, 5), (Prompt(text="how many", answer="1"), None), (prompt, None)):
        asyncio.run(begin(Unit(7, 2), prompt_of_the_row, seed).run())
    seeded, plain, unseeded = Noting.tasks
    assert seeded == TaskInput(
        messages=chat, answer="1", data_source="toy", extra={"amounts": "+1"}, seed=5, name="run/train/7/2"
    )
    assert plain.messages == [{"role": "user", "content": "how many"}]
    assert plain.seed == unseeded.seed


@pytest.mark.parametrize("run_seed", [0, 1, 2**22, 2**40])
def test_the_seed_of_an_environment_fits_every_generator_and_is_its_own_within_the_run(run_seed: int) -> None:
    sampled = [sampling_seed(run_seed, group_id, 8) + index for group_id in (0, 1, 2, 10**6) for index in range(8)]
    Noting.tasks.clear()
    for seed in sampled:
        asyncio.run(begin(Unit(0, 0), Prompt(text="how many", answer="1"), seed).run())
    seeds = [task.seed for task in Noting.tasks]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert seeds == sampled or run_seed
