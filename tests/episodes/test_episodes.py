"""What the episodes of one rollout share."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.broker.leases.lease import sampling_seed
from asyncrl.config.sections.environment import Environment
from asyncrl.engine import EngineLoad, PolicyTurn
from asyncrl.episodes.environment import Answer, TaskInput
from asyncrl.episodes.episode import Episode
from asyncrl.episodes.episodes import Episodes, adapt, paced
from asyncrl.episodes.gate import Concurrency
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Prompt, Sampling, Unit
from asyncrl.messages.words import FinishReason
from tests.episodes.stage import Counter, StagedEnvironments, WordBoundary, WordEngine, ids

ENVIRONMENT = Environment(function="till.py:Till", max_turns=8, max_tokens=100)


def test_tools_of_the_environment_are_shown_with_the_prompt() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    shown = Episodes(ENVIRONMENT, StagedEnvironments(tools=[tool]), WordBoundary(), run="run").shown(
        Prompt(text="how many")
    )
    assert shown.tools == '[{"type":"function","function":{"name":"look","parameters":{}}}]'
    assert Episodes(ENVIRONMENT, StagedEnvironments(), WordBoundary(), run="run").shown(Prompt(text="a")).tools == ""


def tools_named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


def test_tools_of_the_row_go_before_those_of_the_environment_which_must_have_them() -> None:
    listed = json.dumps(tools_named("look"))
    episodes = Episodes(ENVIRONMENT, StagedEnvironments(tools=tools_named("look", "add")), WordBoundary(), run="run")
    assert episodes.shown(Prompt(text="a", tools=listed)).tools == listed
    with pytest.raises(
        EngineError, match=r"tools that nothing in \[environment\] runs, open: it has add, look"
    ) as refused:
        episodes.shown(Prompt(text="a", tools=json.dumps(tools_named("look", "open"))))
    assert not refused.value.retryable
    silent = Episodes(ENVIRONMENT, StagedEnvironments(), WordBoundary(), run="run")
    assert silent.shown(Prompt(text="a", tools=listed)).tools == listed


def test_a_template_without_tools_shows_those_of_the_row_as_texts() -> None:
    environment = replace(ENVIRONMENT, tool_parser="plain")
    episodes = Episodes(environment, StagedEnvironments(), WordBoundary(), run="run")
    shown = episodes.shown(Prompt(chat=[{"role": "user", "content": "a"}], tools=json.dumps(tools_named("look"))))
    assert '"name": "look"' in shown.chat[0]["content"]
    assert shown.tools == ""


class ToldBoundary(WordBoundary):
    """Notes the tools by which turns are read."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "") -> PolicyTurn:
        self.told.append(tools)
        return super().said(token_ids, finish_reason, tools)


def test_the_environment_gets_the_tools_of_the_row_and_turns_are_read_by_them() -> None:
    tools, boundary, engine = tools_named("look"), ToldBoundary(), WordEngine(lambda before: "done")
    Noting.tasks.clear()
    episode = Episodes(ENVIRONMENT, StagedEnvironments(make=Noting), boundary, run="run").begin(
        Unit(0, 0),
        Prompt(text="a", answer="1", tools=json.dumps(tools)),
        ids("a"),
        sample=engine.sample,
        written=engine.written,
        sampling=Sampling(4),
        seed=1,
    )
    asyncio.run(episode.run())
    assert [task.tools for task in Noting.tasks] == [tools]
    assert set(boundary.told) == {json.dumps(tools)}


class Noting(Counter):
    tasks: list[TaskInput] = []

    def reset(self, task: TaskInput) -> Answer:
        self.tasks.append(task)
        return super().reset(task)


def begin(unit: Unit, prompt: Prompt, seed: int | None) -> Episode:
    engine = WordEngine(lambda before: "done")
    return Episodes(ENVIRONMENT, StagedEnvironments(make=Noting), WordBoundary(), run="run").begin(
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


# ── test pacing ───────────────────────────────────────────────────────────────────────────────
# Active episodes of a node follow the load of its engine.


class Measured:
    def __init__(self, *loads: EngineLoad) -> None:
        self.loads = list(loads)

    def measure(self) -> EngineLoad:
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]


QUIET = EngineLoad(kv_usage=0.1, num_preempted=0, num_running=4, num_waiting=0)
THRASHING = EngineLoad(kv_usage=0.99, num_preempted=500, num_running=4, num_waiting=9)


def make_episodes(most: int = 8) -> Episodes:
    environment = Environment(function="till.py:Till", max_turns=8, max_tokens=100)
    return Episodes(environment, StagedEnvironments(), WordBoundary(), run="run", most=most)


def test_an_engine_that_preempts_gets_fewer_episodes() -> None:
    episodes = make_episodes()
    concurrency, engine = Concurrency(8, 8), Measured(QUIET, THRASHING)
    for now_s in range(0, 40, 2):
        adapt(episodes, engine, concurrency, float(now_s))
    assert episodes.gate.limit < 8


def test_an_engine_that_cannot_be_measured_leaves_all_episodes_active() -> None:
    async def scene() -> None:
        episodes = make_episodes()
        async with paced(episodes, object(), 2):
            assert episodes.gate.limit == 8

    asyncio.run(scene())


def test_the_load_is_followed_while_the_block_runs() -> None:
    async def scene() -> None:
        episodes, slept = make_episodes(), asyncio.Event()
        now_s = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now_s
            now_s += seconds
            if now_s > 60:
                slept.set()
                await asyncio.Event().wait()

        async with paced(episodes, Measured(QUIET, THRASHING), 6, clock=lambda: now_s, sleep=sleep):
            assert episodes.gate.limit == 6, "as many as there are slots, at first"
            await slept.wait()
            assert episodes.gate.limit < 6
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scene())


def test_an_episode_without_a_seat_waits_until_another_has_ended() -> None:
    async def scene() -> None:
        episodes, engine = make_episodes(most=1), WordEngine(lambda before: "word")

        async def play(index: int) -> int:
            episode = episodes.begin(
                Unit(0, index),
                Prompt(text="a", answer="2"),
                ids("a <policy>"),
                sample=engine.sample,
                written=engine.written,
                sampling=Sampling(4),
                seed=index,
            )
            return len((await episode.run()).turns)

        assert list(await asyncio.gather(play(0), play(1000))) == [2, 2]
        seeds = [request.seed for request in engine.requests]
        assert seeds.index(1000) == 2, "the second begins when the first has ended"
        assert not episodes.gate.active

    asyncio.run(scene())
