import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncrl.environment import Client
from asyncrl.episodes.environment import Score
from asyncrl.episodes.gateway.app import MAX_SENT_METRICS, BodyBudget, Disconnected, Exchange, GatewayApp
from asyncrl.episodes.gateway.request import RefusedRequest
from asyncrl.episodes.record import EpisodeLimits
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from tests.episodes.gateway.doubles import Connection, Episode, call, chat, user

HI = [user("Hi")]
ASK = {"messages": HI}


def play(scene: Callable[[Episode, GatewayApp], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            episode = Episode(lambda _: "Hello.")
            await scene(episode, GatewayApp(episode.gateway, **options))

    asyncio.run(main())


def test_health_needs_no_capability() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        assert (await call(app, "GET", "/healthz")).status == 200
        assert (await call(app, "HEAD", "/healthz")).body == b""

    play(scene)


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/e", "/e/", "/e//v1/chat/completions", "/e/wrong/v1/chat/completions", "/e/{key}", "/e/{key}/",
        "/e/{key}/v1", "/e/{key}/v1/chat", "/e/{key}/v1/chat/completions/", "/e/{key}/../{key}/v1/models",
        "/v1/chat/completions", "//e/{key}/v1/models", "/E/{key}/v1/models", "/e/{key}x/v1/models",
        "/e/{key}/v1//models",
        "/healthz/", "/e/{key}%00/v1/models", "/e/\u00e9\ud800/v1/models",
    ],
)  # fmt: skip
def test_other_paths_are_not_found_and_not_told_apart(path: str) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await call(app, "POST", path.replace("{key}", episode.open.key), ASK)
        assert (answer.status, answer.json["error"]["message"]) == (404, "there is nothing here")

    play(scene)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("GET", "/reward"), ("PATCH", "/reward")],
)
def test_other_methods_are_not_allowed(method: str, path: str) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        assert (await call(app, method, f"{episode.path}{path}")).status == 405

    play(scene)


def test_a_key_must_agree_with_the_path() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        other = Episode(lambda _: "x", gateway=episode.gateway)
        path = f"{episode.path}/v1/models"
        right = b"Bearer " + episode.open.key.encode()
        assert (await call(app, "GET", path, headers=[(b"authorization", right)])).status == 200
        for wrong in (
            b"Bearer x",
            b"Bearer " + other.open.key.encode(),
            right[7:],
            b"Basic " + right[7:],
            b"",
            b"\xff",
        ):
            answer = await call(app, "GET", path, headers=[(b"authorization", wrong)])
            assert (answer.status, answer.code) == (401, "invalid_api_key")

    play(scene)


def test_the_policy_is_the_only_model() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        models = (await call(app, "GET", f"{episode.path}/v1/models")).json
        assert [model["id"] for model in models["data"]] == ["policy"]

    play(scene)


def test_fields_without_effect_are_named() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        assert (await chat(app, episode, HI, temperature=0.1, top_p=0.5)).headers[
            b"x-asyncrl-ignored"
        ] == b"temperature,top_p"
        assert b"x-asyncrl-ignored" not in (await chat(app, episode, HI)).headers

    play(scene)


def test_log_probs_and_tokens_are_told_to_who_asks_for_them() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        again = (await chat(app, episode, HI, logprobs=True, return_token_ids=True)).json
        assert again["prompt_token_ids"] == episode.record.prompt_ids
        assert again["choices"][0]["token_ids"] == episode.record.turns[0].completion.completion_ids
        assert [token["token"] for token in again["choices"][0]["logprobs"]["content"]] == [*"Hello.", ""]
        assert again["usage"] == {"prompt_tokens": 21, "completion_tokens": 7, "total_tokens": 28}
        assert len(episode.engine.requests) == 1

    play(scene)


# ── streams ─────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_kept_alive_while_the_engine_samples() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        episode.engine.may_write.clear()
        connection = Connection(
            app, "POST", f"{episode.path}/v1/chat/completions", json.dumps(ASK | {"stream": True}).encode()
        )
        running = asyncio.create_task(connection.run())
        while len(connection.sent) < 4:
            await asyncio.sleep(0)
        episode.engine.may_write.set()
        answer = await running
        assert answer.headers[b"content-type"] == b"text/event-stream"
        assert answer.body.startswith(b": sampling\n\n: sampling\n\n")
        assert answer.body.endswith(b"data: [DONE]\n\n")

    play(scene, keep_alive_s=0.001)


def test_a_stream_that_is_refused_at_once_has_the_status() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        episode.engine.error = EngineError("no slot")
        assert (await chat(app, episode, HI, stream=True)).status == 503

    play(scene)


def test_a_stream_that_is_refused_later_says_so_in_an_event() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        episode.engine.error = EngineError("no slot")
        episode.engine.may_write.clear()
        connection = Connection(
            app, "POST", f"{episode.path}/v1/chat/completions", json.dumps(ASK | {"stream": True}).encode()
        )
        running = asyncio.create_task(connection.run())
        while not connection.sent:
            await asyncio.sleep(0)
        episode.engine.may_write.set()
        answer = await running
        assert answer.status == 200
        assert b'data: {"error":{"message":"the engine could not sample: no slot"' in answer.body
        assert b"[DONE]" not in answer.body

    play(scene, keep_alive_s=0.001)


# ── the program's word ──────────────────────────────────────────────────────────────────────


def test_the_last_reward_counts() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        for reward in (0.0, 1.0):
            sent = {"reward": reward, "metrics": {"steps": 3}}
            assert (await call(app, "PUT", f"{episode.path}/reward", sent)).status == 200
        assert episode.open.score == Score(reward=1.0, metrics={"steps": 3.0})
        assert (await call(app, "PUT", f"{episode.path}/reward", {"score": 0.5})).status == 200
        assert episode.open.score == Score(reward=0.5), "the reward by its other name"

    play(scene)


def test_a_completion_may_have_a_reward_of_its_own() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        for _ in range(3):
            await chat(app, episode, HI)
        path = f"{episode.path}/reward"
        assert (await call(app, "PUT", path, {"completions": {"chatcmpl-0": 0.5, "msg_2": 1.0}})).status == 200
        assert (await call(app, "PUT", path, {"completions": {"resp_0": 0.25}})).status == 200
        assert [turn.reward for turn in episode.record.turns] == [0.25, 0.0, 1.0]
        assert episode.open.score is None, "their sum is the reward"
        for unknown in ("chatcmpl-3", "x", "chatcmpl-", "chatcmpl-²", "9" * 5000):
            answer = await call(app, "PUT", path, {"completions": {"chatcmpl-1": 1.0, unknown: 1.0}})
            assert (answer.status, answer.code) == (400, "invalid_reward")
        assert (await call(app, "PUT", path, {"completions": {"chatcmpl-1": 1e9}})).code == "invalid_reward"
        assert episode.record.turns[1].reward == 0.0

    play(scene)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"1", b"{", b'{"reward": "1"}', b'{"reward": NaN}', b'{"reward": 1e7}', b'{"score": 1, "reward": 1}',
        b'{"metrics": {"forks": 1}}',
        b'{"reward": 1e999}',
        b'{"metrics": {"a": "b"}}', b'{"metrics": [1]}', b'{"metrics": {"a": 1e13}}', b"\xff", b"[" * 60_000,
        json.dumps({"metrics": {str(n): 0 for n in range(MAX_SENT_METRICS + 1)}}).encode(),
        json.dumps({"metrics": {"n" * 101: 0}}).encode(),
    ],
)  # fmt: skip
def test_an_impossible_reward_is_refused(body: bytes) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await call(app, "PUT", f"{episode.path}/reward", body)
        assert (answer.status, answer.code, episode.open.score) == (400, "invalid_reward", None)

    play(scene)


# ── seats ───────────────────────────────────────────────────────────────────────────────────

TWO = EpisodeLimits(max_turns=9, max_tokens=10_000, seats=2)


def test_each_seat_has_a_path_of_its_own_and_knows_nothing_of_the_others_turns() -> None:
    async def main() -> None:
        episode = Episode(lambda read: f"{len(read)}", limits=TWO)
        app, second = GatewayApp(episode.gateway), f"{episode.path}/seats/1/v1/chat/completions"
        first = (await chat(app, episode, HI)).message
        other = (await call(app, "POST", second, ASK)).message
        await call(app, "POST", second, {"messages": [*HI, other, user("on")]})
        await chat(app, episode, [*HI, first, user("on")])
        turns = [(turn.seat, turn.parent) for turn in episode.record.turns]
        assert turns == [(0, FROM_PROMPT), (1, FROM_NOTHING), (1, 1), (0, 0)]
        await call(app, "POST", second, {"messages": [*HI, {"role": "assistant", "content": "no"}, user("on")]})
        assert (episode.record.turns[-1].seat, episode.record.turns[-1].parent) == (1, FROM_NOTHING)
        assert episode.open.counts["root_edited_reply"] == 1

    asyncio.run(main())


def test_a_client_gives_the_path_of_a_seat() -> None:
    episode = Episode(lambda _: "x", limits=TWO)
    client = Client(episode.open.base_url, episode.open.key)
    assert client.seat(1) == Client(f"http://test{episode.path}/seats/1/v1", episode.open.key)


@pytest.mark.parametrize("dialect", ["responses", "chat/completions"])
def test_an_id_of_another_seat_is_unknown(dialect: str) -> None:
    """By it a seat would read what the other has read."""

    async def main() -> None:
        episode = Episode(lambda _: "secret", limits=TWO)
        app = GatewayApp(episode.gateway)
        asked = {"input": "Hi"} if dialect == "responses" else ASK
        answer = await call(app, "POST", f"{episode.path}/v1/{dialect}", asked)
        body = {"input": "on", "previous_response_id": answer.json["id"].replace("chatcmpl-", "resp_")}
        assert (await call(app, "POST", f"{episode.path}/seats/1/v1/responses", body)).code == "invalid_request"
        assert (await call(app, "POST", f"{episode.path}/v1/responses", body)).status == 200

    asyncio.run(main())


@pytest.mark.parametrize("name", ["2", "-1", "x", "", "²", "9" * 5000])
def test_a_seat_that_is_none_is_not_found(name: str) -> None:
    async def main() -> None:
        episode = Episode(lambda _: "x", limits=TWO)
        path = f"{episode.path}/seats/{name}/v1/chat/completions"
        answer = await call(GatewayApp(episode.gateway), "POST", path, ASK)
        assert answer.status == 404
        assert answer.json["error"]["message"].endswith("environment.seats is 2, expected 0 .. 1")

    asyncio.run(main())


def test_a_list_rewards_each_seat() -> None:
    async def main() -> None:
        episode = Episode(lambda _: "x", limits=TWO)
        app, path = GatewayApp(episode.gateway), f"{episode.path}/reward"
        assert (await call(app, "PUT", path, {"reward": [1.0, -1.0]})).status == 200
        assert episode.open.score == Score(reward=[1.0, -1.0])
        for wrong in ([1.0], [1.0, 2.0, 3.0], [0.0, 1e7], []):
            assert (await call(app, "PUT", path, {"reward": wrong})).code == "invalid_reward"

    asyncio.run(main())


# ── mounted, and faults ─────────────────────────────────────────────────────────────────────


def test_it_can_be_mounted_below_a_path() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        async def receive() -> Any:
            return {"type": "http.request"}

        scope = {"type": "http", "method": "GET", "path": "/policy/healthz", "root_path": "/policy", "headers": []}
        await app(scope, receive, send)
        assert sent[0]["status"] == 200

    play(scene)


def test_a_lifespan_is_followed_and_a_websocket_is_closed() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        sent: list[Any] = []
        events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def send(event: Any) -> None:
            sent.append(event["type"])

        async def receive() -> Any:
            return events.pop(0)

        await app({"type": "lifespan"}, receive, send)
        await app({"type": "websocket", "path": "/"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]

    play(scene)


def test_a_fault_of_the_gateway_is_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        monkeypatch.setattr(episode.open, "reply", lambda request: 1 / 0)
        assert (await chat(app, episode, HI)).code == "internal_error"
        monkeypatch.undo()
        assert (await chat(app, episode, HI)).status == 200

    play(scene)


# ── test exchange ─────────────────────────────────────────────────────────────────────────────


def received(
    events: list[dict[str, Any]], *, limit: int = 10, budget: int = 100, headers: Any = ()
) -> tuple[bytes, BodyBudget]:
    """Body of a request whose parts arrive as ``events``; nothing more arrives after them."""
    memory = BodyBudget(budget)

    async def receive() -> dict[str, Any]:
        if not events:
            await asyncio.Event().wait()
        return events.pop(0)

    async def main() -> bytes:
        async def send(event: Any) -> None:
            raise AssertionError(event)

        return await Exchange({"method": "POST", "headers": headers}, receive, send).body(limit, memory, 0.01)

    return asyncio.run(main()), memory


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_arrives_in_parts() -> None:
    body, memory = received([part(b"ab"), part(b""), part(b"cd", more=False)])
    assert body == b"abcd"
    memory.take(100)  # all was given back


@pytest.mark.parametrize("events", [[part(b"a" * 11, more=False)], [part(b"a" * 6), part(b"a" * 6)]])
def test_a_large_body_is_refused_before_all_of_it_has_arrived(events: list[dict[str, Any]]) -> None:
    with pytest.raises(RefusedRequest, match="more than 10 bytes"):
        received(events)


@pytest.mark.parametrize("length", [b"11", b"9" * 1000])
def test_a_large_body_is_refused_by_its_announced_length(length: bytes) -> None:
    with pytest.raises(RefusedRequest, match="more than 10 bytes"):
        received([], headers=[(b"content-length", length)])


def test_a_slow_body_is_refused() -> None:
    with pytest.raises(RefusedRequest, match=r"did not arrive within 0.01 s") as refused:
        received([part(b"a")])
    assert refused.value.status == 408


def test_all_bodies_together_have_a_budget() -> None:
    with pytest.raises(RefusedRequest) as refused:
        received([part(b"aaaa", more=False)], budget=3)
    assert (refused.value.status, refused.value.retry) == (503, True)


def test_a_client_may_go_away_before_its_body_has_arrived() -> None:
    with pytest.raises(Disconnected):
        received([part(b"a"), {"type": "http.disconnect"}])
