"""The code of a node asks models at a server on loopback, by a capability, and never sees the key of theirs."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

import httpx

from asyncrl.config.sections.models import ServedModel
from asyncrl.environment import ModelClient, ModelClients, ModelFailed, Task, models
from asyncrl.errors import ConfigError
from asyncrl.served.app import OpenModels, open_models
from tests.served.judge import KEY, MODEL, Judge

GREEDY = [{"role": "user", "content": "a b c"}]


def play(
    scene: Callable[[ModelClient, Judge, OpenModels], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    judge: Judge | None = None,
    **settings: Any,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)

    async def main() -> None:
        async with (judge or Judge()).running() as service:
            served = {"judge": ServedModel(url=service.url, model=MODEL, key_env="JUDGE_KEY", **settings)}
            async with open_models(served) as opened:
                for name, value in opened.variables.items():
                    monkeypatch.setenv(name, value)
                await scene(models()["judge"], service, opened)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_code_asks_by_name_and_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        assert await model.chat(GREEDY, temperature=0, max_tokens=3) == "3"
        assert await Task(messages=[]).models["judge"].chat(GREEDY, temperature=0, max_tokens=3) == "3"
        assert judge.requests == [{"messages": GREEDY, "temperature": 0, "max_tokens": 3, "model": MODEL}]
        assert opened.uses()["judge"].cached == 1

    play(scene, monkeypatch)


def test_any_client_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    openai = pytest.importorskip("openai")

    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.key) as client:
            reply = await client.chat.completions.create(model="judge", messages=GREEDY)
            assert reply.choices[0].message.content == "3"
            assert [one.id async for one in await client.models.list()] == ["judge"]

    play(scene, monkeypatch)


def test_processes_of_the_code_get_the_address_and_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        variables = opened.variables
        assert variables["JUDGE_KEY"] == ""
        assert "127.0.0.1" in variables["NO_PROXY"].split(",")
        assert json.loads(variables["ASYNCRL_MODELS"]) == {"judge": {"base_url": model.base_url, "key": model.key}}
        assert KEY not in str(variables)
        assert model.key not in repr(model)
        assert len(model.key) == 43

    play(scene, monkeypatch)


def test_nothing_is_answered_without_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            right = f"{model.base_url}/chat/completions"
            body = {"messages": GREEDY}
            wrong = [
                (right.replace(model.key, "x" * 43), {}, 404),
                (right.replace(model.key, ""), {}, 404),
                (right, {"authorization": "Bearer other"}, 401),
                (f"{model.base_url}/files", {}, 404),
                (f"{model.base_url}/chat/../../../e", {}, 404),
            ]
            for url, headers, status in wrong:
                assert (await client.post(url, json=body, headers=headers)).status_code == status, url
            assert (await client.get(right)).status_code == 405
            for content in (b"{", b"[]", b"\xff", b'{"stream": true}'):
                assert (await client.post(right, content=content)).status_code == 400
            assert judge.requests == []
            assert (await client.post(right, json=body)).status_code == 200

    play(scene, monkeypatch)


def test_a_model_that_is_away_fails_with_its_name_and_may_be_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        with pytest.raises(ModelFailed) as failed:
            await model.chat(GREEDY)
        assert failed.value.retryable
        assert f"model 'judge': {judge.url} gave no answer within 0.2 s: status 503" in str(failed.value)
        assert opened.uses()["judge"].failed == 1

    play(scene, monkeypatch, Judge(trouble=[(503, {})] * 1000), timeout_s=0.1, deadline_s=0.2)


def test_clients_are_told_not_to_repeat_what_was_repeated_here(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{model.base_url}/chat/completions", json={"messages": GREEDY})
        assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
        assert answer.json()["error"]["code"] == "model_failed"

    play(scene, monkeypatch, Judge(trouble=[(429, {})] * 1000), timeout_s=0.1, deadline_s=0.2)


@pytest.mark.parametrize(
    ("name", "messages", "said"),
    [
        ("another", GREEDY, "refused the request: 404: The model `another` does not exist"),
        (MODEL, [], "refused the request: 400: messages: expected a list"),
    ],
)
def test_a_refused_request_is_the_codes_fault(
    name: str, messages: list[dict[str, str]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            Judge(key="").running() as judge,
            open_models({"judge": ServedModel(url=judge.url, model=name)}) as opened,
        ):
            monkeypatch.setenv("ASYNCRL_MODELS", opened.variables["ASYNCRL_MODELS"])
            with pytest.raises(ModelFailed, match=said) as failed:
                await models()["judge"].chat(messages)
            assert not failed.value.retryable
            assert len(judge.requests) == 1

    asyncio.run(main())


def test_a_page_that_is_no_json_becomes_an_error_in_openais_form(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{model.base_url}/embeddings", json={"input": "a"})
        assert answer.status_code == 404
        assert "its server answered with status 404: '<html>no such page</html>'" in answer.json()["error"]["message"]

    play(scene, monkeypatch)


def test_a_request_that_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        judge.may_answer.clear()
        asking = asyncio.create_task(model.chat(GREEDY, temperature=1))
        while not judge.most_at_once:
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        while not opened.uses()["judge"].seconds:
            await asyncio.sleep(0)
        assert opened.uses()["judge"].failed == 0
        judge.may_answer.set()

    play(scene, monkeypatch)


def test_an_answer_without_text_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(model: ModelClient, judge: Judge, opened: OpenModels) -> None:
        with pytest.raises(ModelFailed, match="model 'judge' answered without text"):
            await model.chat(GREEDY)

    play(scene, monkeypatch, Judge(lambda _: None))  # type: ignore[arg-type, return-value]


def test_a_node_that_is_gone_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ModelClient("judge", "http://127.0.0.1:9/m/x/v1", "x")
    with pytest.raises(ModelFailed, match="the node's own server of models gave no answer: ConnectionRefusedError"):
        asyncio.run(gone.chat(GREEDY))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no model 'juge': add \[models.juge\] to the run file; it has judge"):
        ModelClients(judge=ModelClient("judge", "", ""))["juge"]
    with pytest.raises(KeyError, match="it has none"):
        models()["judge"]


def test_a_key_that_is_not_there_is_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened() -> None:
        async with open_models({"judge": ServedModel(url="http://127.0.0.1:9", key_env="JUDGE_KEY")}):
            raise AssertionError

    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"models.judge.key_env names the variable JUDGE_KEY, which is not set"):
        asyncio.run(opened())
    monkeypatch.setenv("JUDGE_KEY", "a\nb")
    with pytest.raises(ConfigError, match="characters that no header may have"):
        asyncio.run(opened())


def test_without_models_nothing_listens() -> None:
    async def main() -> None:
        async with open_models({}) as opened:
            assert opened.variables == {}
            assert opened.uses() == {}

    asyncio.run(main())


def test_each_model_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        served = {name: ServedModel(url="http://127.0.0.1:9") for name in ("judge", "user")}
        async with open_models(served, folder=tmp_path / "rollout-0") as opened:
            addresses = json.loads(opened.variables["ASYNCRL_MODELS"])
            assert addresses["judge"] != addresses["user"]

    asyncio.run(main())
    assert {path.name for path in (tmp_path / "rollout-0").iterdir()} == {"judge.sqlite", "user.sqlite"}
