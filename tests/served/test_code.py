"""Environments, agent programs and rewards ask a model, in processes of their own that never see its key."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from asyncrl.config.sections.environment import Environment
from asyncrl.config.sections.models import ServedModel
from asyncrl.config.sections.reward import Reward
from asyncrl.engine import PolicyTurn
from asyncrl.episodes.environment import Score, TaskInput
from asyncrl.episodes.pool import make_environments
from asyncrl.errors import EnvironmentFailed, VerifierError
from asyncrl.reward.verifier import Verdict, VerifierInput
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.served.app import OpenModels, open_models
from tests.served.judge import KEY, MODEL, Judge

pytestmark = pytest.mark.timeout(60)
T = TypeVar("T")

ENVIRONMENT = """
import os
from asyncrl.environment import Step

class Asks:
    def reset(self, task):
        self.judge = task.models["judge"]

    async def step(self, said):
        reward = float(await self.judge.chat([{"role": "user", "content": said.text}], temperature=0))
        return Step(reward=reward, done=os.environ["JUDGE_KEY"] == "")

async def solve(task, client):
    return float(await task.models["judge"].chat(task.messages))
"""
REWARD = """
import os
from asyncrl.environment import models

async def score(inputs):
    said = await models()["judge"].chat([{"role": "user", "content": inputs.completion}])
    return {"score": float(said), "hidden": not os.environ["JUDGE_KEY"]}
"""
PROGRAM = """
import json, os, urllib.request
access = json.loads(os.environ["ASYNCRL_MODELS"])["judge"]
body = json.dumps({"messages": [{"role": "user", "content": "a b c"}]}).encode()
headers = {"Authorization": "Bearer " + access["key"], "Content-Type": "application/json"}
request = urllib.request.Request(access["base_url"] + "/chat/completions", body, headers)
answer = json.load(urllib.request.urlopen(request))
print(answer["choices"][0]["message"]["content"], repr(os.environ["OPENAI_API_KEY"]))
raise SystemExit(3)
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)


def with_judge(
    use: Callable[[OpenModels, Judge], Awaitable[T]], judge: Judge | None = None, key_env: str = "JUDGE_KEY"
) -> T:
    async def main() -> T:
        async with (judge or Judge()).running() as service:
            served = ServedModel(url=service.url, model=MODEL, key_env=key_env, timeout_s=0.2, deadline_s=0.5)
            async with open_models({"judge": served}) as opened:
                return await use(opened, service)

    return asyncio.run(main())


def environment_of(folder: Path, name: str) -> Environment:
    (folder / "asks.py").write_text(ENVIRONMENT)
    return Environment(function=f"{folder / 'asks.py'}:{name}", workers=1)


def judged(folder: Path, judge: Judge | None = None) -> Verdict:
    (folder / "reward.py").write_text(REWARD)

    async def use(opened: OpenModels, judge: Judge) -> Verdict:
        async with WorkerPool(Reward(function=f"{folder / 'reward.py'}:score"), opened.variables) as pool:
            return await pool.judge(VerifierInput(completion="a b c d"))

    return with_judge(use, judge)


def test_an_environment_asks_by_the_name_in_its_task(tmp_path: Path) -> None:
    async def use(opened: OpenModels, judge: Judge) -> tuple[object, bool]:
        async with make_environments(environment_of(tmp_path, "Asks"), "run", "node", opened.variables) as environments:
            episode = environments.open("run/0")
            await episode.reset(TaskInput(messages=[]))
            step = await episode.step(PolicyTurn(text="a b"))
            return step.reward, step.done

    assert with_judge(use) == (2.0, True), "and the key is hidden"


def test_a_function_that_plays_the_agent_asks_beside_the_policy(tmp_path: Path) -> None:
    async def use(opened: OpenModels, judge: Judge) -> Score:
        async with make_environments(
            environment_of(tmp_path, "solve"), "run", "node", opened.variables
        ) as environments:
            task = TaskInput(messages=[{"role": "user", "content": "a b c d e"}])
            return await environments.open("run/0").solve(task, "http://127.0.0.1:9/e/x/v1", "x")

    assert with_judge(use) == Score(reward=5.0)


def test_a_program_finds_addresses_in_a_variable_and_keeps_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def use(opened: OpenModels, judge: Judge) -> None:
        environment = Environment(command=[sys.executable, "-c", PROGRAM])
        async with make_environments(environment, "run", "node", opened.variables) as environments:
            await environments.open("run/0").solve(TaskInput(messages=[]), "http://127.0.0.1:9/e/x/v1", "cap")

    with pytest.raises(EnvironmentFailed, match="exit code 3: 3 'cap'"):
        with_judge(use, key_env="OPENAI_API_KEY")
    assert os.environ["OPENAI_API_KEY"] == KEY


def test_a_reward_asks_a_judge(tmp_path: Path) -> None:
    assert judged(tmp_path) == Verdict(4.0, {"correct": 1.0, "hidden": 1.0})


def test_a_judge_that_fails_is_a_failure_with_its_name_and_no_reward(tmp_path: Path) -> None:
    with pytest.raises(VerifierError) as failed:
        judged(tmp_path, Judge(trouble=[(429, {})] * 1000))
    assert failed.value.retryable
    assert str(failed.value).startswith("model 'judge': http://127.0.0.1:")
    assert "gave no answer within 0.5 s: status 429" in str(failed.value)


def test_a_user_that_fails_is_a_failure_of_the_environment(tmp_path: Path) -> None:
    async def use(opened: OpenModels, judge: Judge) -> None:
        async with make_environments(environment_of(tmp_path, "Asks"), "run", "node", opened.variables) as environments:
            episode = environments.open("run/0")
            await episode.reset(TaskInput(messages=[]))
            await episode.step(PolicyTurn(text="a b"))

    with pytest.raises(EnvironmentFailed, match=r"step raised ModelFailed: model 'judge': .* status 503") as failed:
        with_judge(use, Judge(trouble=[(503, {})] * 1000))
    assert failed.value.retryable


def test_a_request_that_the_judge_refuses_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="refused the request: 401: Incorrect API key provided") as failed:
        judged(tmp_path, Judge(key="another"))
    assert not failed.value.retryable
    assert KEY not in str(failed.value)
