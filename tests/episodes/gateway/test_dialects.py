"""The three dialects, asked by the clients of those who made them: OpenAI's and Anthropic's."""

import asyncio
import importlib
import importlib.util
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from asyncrl.episodes.conversation import MALFORMED
from asyncrl.episodes.gateway.app import GatewayApp
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.messages.words import Unenforced
from tests.episodes.gateway.doubles import Answer, Episode, ThinkingBoundary, call, shown

LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {"at": {}}}}
ASKED = "How many boxes?"
THOUGHT = "<think>hm</think>"
needs_openai = pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="OpenAI's client is not installed")
needs_anthropic = pytest.mark.skipif(
    importlib.util.find_spec("anthropic") is None, reason="Anthropic's client is not installed"
)


def policy(before: str) -> str:
    """Looks twice, then tells what it found; thinks before each turn."""
    num = before.count("a box")
    if num == 2:
        return f"{THOUGHT}There are {num}."
    return f'{THOUGHT}I look. <tool_call>{{"name": "look", "arguments": {{"at": {num}}}}}</tool_call>'


def an_episode(**options: Any) -> Episode:
    episode = Episode(policy, [{"role": "user", "content": ASKED}], **options)
    episode.boundary = episode.conversation.boundary = ThinkingBoundary()
    return episode


def play(scene: Callable[[Episode, GatewayApp], Awaitable[None]], episode: Episode | None = None) -> Episode:
    episode = episode or an_episode()

    async def main() -> None:
        async with asyncio.timeout(20):
            await scene(episode, GatewayApp(episode.gateway))

    asyncio.run(main())
    return episode


def client(kind: str, episode: Episode, app: Any) -> Any:
    """A maker's client that talks to the app without a socket, by whichever HTTP library it uses."""
    sdk = importlib.import_module(kind)
    base = next(one for one in sdk.DefaultAsyncHttpxClient.__mro__ if one.__name__ == "AsyncClient")
    library = importlib.import_module(base.__module__.partition(".")[0])
    http = library.AsyncClient(transport=library.ASGITransport(app=app))
    if kind == "openai":
        return sdk.AsyncOpenAI(base_url=episode.open.base_url, api_key=episode.open.key, http_client=http)
    url = episode.open.base_url.removesuffix("/v1")
    return sdk.AsyncAnthropic(base_url=url, api_key=episode.open.key, http_client=http)


def assert_one_branch(episode: Episode) -> None:
    """Three turns, each read after the one before, with their tokens as sampled and nothing else twice."""
    record = episode.record
    assert [turn.parent for turn in record.turns[1:]] == [0, 1]
    assert all(turn.is_trained for turn in record.turns)
    read = shown(record.ids_through(2))
    assert (read.count(ASKED), read.count(THOUGHT), read.count("a box")) == (1, 3, 2)
    assert episode.open.counts.scores == {"forks": 0.0, "roots": float(record.root(2) == FROM_NOTHING), **BROKEN}


BROKEN = {"broken_lineage": 0.0, "unenforced": 0.0, **dict.fromkeys(MALFORMED, 0.0)}


# ── responses ─────────────────────────────────────────────────────────────────────────────────

FUNCTION = {"type": "function", **LOOK, "strict": False}


async def responded(api: Any, streamed: bool, **fields: Any) -> Any:
    if not streamed:
        return await api.responses.create(model="policy", **fields)
    async with api.responses.stream(model="policy", **fields) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_response()


@needs_openai
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by_id", [False, True], ids=["whole conversation", "previous id"])
def test_an_agent_of_responses_is_one_branch(streamed: bool, by_id: bool) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        api = client("openai", episode, app)
        sent: list[Any] = [{"role": "user", "content": ASKED}]
        previous: dict[str, str] = {}
        while True:
            given = await responded(api, streamed, input=sent, tools=[FUNCTION], **previous)
            calls = [item for item in given.output if item.type == "function_call"]
            (thought,) = [item for item in given.output if item.type == "reasoning"]
            assert thought.content[0].text == "hm"
            if not calls:
                break
            assert [json.loads(one.arguments) for one in calls] == [{"at": len(episode.record.turns) - 1}]
            answers = [{"type": "function_call_output", "call_id": one.call_id, "output": "a box"} for one in calls]
            if by_id:
                sent, previous = answers, {"previous_response_id": given.id}
            else:
                sent = [*sent, *(item.model_dump(exclude_none=True) for item in given.output), *answers]
        assert given.output_text == "There are 2."
        assert given.status == "completed"
        assert given.usage.output_tokens == len(episode.record.turns[-1].completion.completion_ids)

    assert_one_branch(play(scene))


@needs_openai
def test_instructions_are_the_system_message_and_belong_to_their_request_alone() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        api = client("openai", episode, app)
        first = await api.responses.create(model="policy", input=ASKED, instructions="Be brief.")
        await api.responses.create(model="policy", input="And now?", previous_response_id=first.id)
        assert shown(episode.engine.requests[0].prompt_ids).startswith("<|im_start|>system\nBe brief.<|im_end|>")
        assert "Be brief." not in shown(episode.engine.requests[1].prompt_ids)

    play(scene)


# ── messages ──────────────────────────────────────────────────────────────────────────────────

TOOL = {"name": "look", "description": "Look.", "input_schema": LOOK["parameters"]}
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


async def messaged(api: Any, streamed: bool, **fields: Any) -> Any:
    if not streamed:
        return await api.messages.create(model="policy", max_tokens=2000, **fields)
    async with api.messages.stream(model="policy", max_tokens=2000, **fields) as stream:
        return await stream.get_final_message()


@needs_anthropic
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thinks", [{}, THINKS], ids=["without thoughts", "with thoughts"])
def test_an_agent_of_messages_is_one_branch(streamed: bool, thinks: dict[str, Any]) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        api = client("anthropic", episode, app)
        sent: list[Any] = [{"role": "user", "content": ASKED}]
        while True:
            given = await messaged(api, streamed, messages=sent, tools=[TOOL], **thinks)
            assert [block.thinking for block in given.content if block.type == "thinking"] == (["hm"] if thinks else [])
            calls = [block for block in given.content if block.type == "tool_use"]
            if given.stop_reason != "tool_use":
                break
            assert [one.input for one in calls] == [{"at": len(episode.record.turns) - 1}]
            answers = [{"type": "tool_result", "tool_use_id": one.id, "content": "a box"} for one in calls]
            content = [block.model_dump(exclude_none=True) for block in given.content]
            sent += [{"role": "assistant", "content": content}, {"role": "user", "content": answers}]
        assert given.content[-1].text == "There are 2."
        assert given.stop_reason == "end_turn"
        assert given.usage.output_tokens == len(episode.record.turns[-1].completion.completion_ids)

    assert_one_branch(play(scene))


@needs_anthropic
def test_a_stop_sequence_is_told_and_a_limit_too() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        api = client("anthropic", episode, app)
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": ASKED}], "system": "Be brief."}
        given = await api.messages.create(model="policy", max_tokens=900, stop_sequences=["look"], **asked)
        assert (given.stop_reason, given.stop_sequence, given.content[0].text) == ("stop_sequence", "look", "I ")
        given = await api.messages.create(model="policy", max_tokens=3, **asked)
        assert given.stop_reason == "max_tokens"
        counted = await api.messages.count_tokens(model="policy", **asked)
        assert counted.input_tokens == given.usage.input_tokens

    play(scene)


@needs_anthropic
def test_refusals_have_the_form_that_anthropics_client_reads() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        import anthropic

        api = client("anthropic", episode, app)
        asked: dict[str, Any] = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        with pytest.raises(anthropic.BadRequestError, match="gateway_ignores") as refused:
            await api.messages.create(**asked, tools=[{"type": "web_search_20250305", "name": "web_search"}])
        assert refused.value.type == "invalid_request_error"
        with pytest.raises(anthropic.AuthenticationError):
            await api.with_options(api_key="another").messages.create(**asked)

    play(scene)


# ── streams that break off ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        pytest.param("openai", lambda api: api.chat.completions.create(**TURN, stream=True), marks=needs_openai),
        pytest.param("openai", lambda api: api.responses.create(model="m", input="x", stream=True), marks=needs_openai),
        pytest.param("anthropic", lambda api: api.messages.create(**TURN, stream=True), marks=needs_anthropic),
    ],
    ids=["chat", "responses", "messages"],
)
def test_a_stream_that_breaks_off_is_an_error_of_the_makers_client(kind: str, ask: Callable[[Any], Any]) -> None:
    async def scene(episode: Episode, _: GatewayApp) -> None:
        episode.engine.error = EngineError("no slot")
        episode.engine.may_write.clear()

        async def begun(scope: Any, receive: Any, send: Any) -> None:
            """The gateway, whose engine fails as soon as a stream has begun."""

            async def sends(event: Any) -> None:
                await send(event)
                episode.engine.may_write.set()

            await GatewayApp(episode.gateway, keep_alive_s=0.001)(scope, receive, sends)

        with pytest.raises(importlib.import_module(kind).APIError, match="no slot"):
            async for _ in await ask(client(kind, episode, begun)):
                pass

    play(scene)


TURN: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}


# ── bodies ────────────────────────────────────────────────────────────────────────────────────


async def post(app: GatewayApp, episode: Episode, api: str, body: dict[str, Any]) -> Answer:
    return await call(app, "POST", f"{episode.path}/v1/{api}", body)


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        ("responses", {"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ("responses", {"input": "x", "background": True}, "background"),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ("responses", {"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("responses", {"input": "x", "tools": [{"type": "function", "name": "f" * (257 << 10)}]}, "tools"),
        ("chat/completions", {"messages": [{"role": "user"}], "tools": [{"type": "custom"}]}, "tools"),
        ("chat/completions", {"messages": [{"role": "user"}], "stop": ["x" * 257]}, "stop"),
        ("responses", {"input": "x", "previous_response_id": "resp_99"}, "previous_response_id"),
    ],
)
def test_what_a_response_cannot_be_is_refused(api: str, body: dict[str, Any], param: str) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await post(app, episode, api, body)
        assert (answer.status, answer.json["error"]["param"]) == (400, param)
        assert not episode.engine.requests

    play(scene)


@pytest.mark.parametrize(
    "block",
    [{"type": "image", "source": {}}, {"type": "document"}, {"type": "tool_result", "content": [{"type": "x"}]}],
)
def test_a_block_that_is_not_read_is_refused(block: dict[str, Any]) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        body = {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
        answer = await post(app, episode, "messages", body)
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")

    play(scene)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("responses", {"input": "x", "tools": [{"type": "web_search"}]}),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "x", "type": "bash_1"}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "custom"}]}),
    ],
)
def test_what_the_operator_lets_be_ignored_is_named_in_a_header_and_counted(api: str, body: dict[str, Any]) -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await post(app, episode, api, body)
        assert answer.status == 200, answer.body
        assert answer.headers[b"x-asyncrl-ignored"] == b"tools"
        assert episode.open.counts["ignored_tools"] == 1

    play(scene, an_episode(gateway=Gateway("http://test", allowed=["tools"])))


def nested(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": nested(depth - 1)}} if depth else {}


@pytest.mark.parametrize("api", ["chat/completions", "responses", "messages"])
def test_tools_that_are_nested_without_end_are_refused_and_odd_ones_are_no_fault_of_ours(api: str) -> None:
    def body(parameters: Any) -> dict[str, Any]:
        named = {"name": "look", "description": "Look."}
        match api:
            case "responses":
                return {"input": "x", "tools": [{"type": "function", **named, "parameters": parameters}]}
            case "messages":
                asked = {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
                return {**asked, "tools": [{**named, "input_schema": parameters}]}
        function = {"type": "function", "function": {**named, "parameters": parameters}}
        return {"messages": [{"role": "user", "content": "x"}], "tools": [function]}

    async def scene(episode: Episode, app: GatewayApp) -> None:
        assert (await post(app, episode, api, body(nested(200)))).status == 400
        odd_ones: list[Any] = [None, {"properties": None}, {"properties": []}, {"properties": {"a": True}}]
        for odd in odd_ones:
            assert (await post(app, episode, api, body(odd))).status == 200

    play(scene)


def test_replies_that_a_client_names_by_their_ids_are_followed() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        first = (await post(app, episode, "responses", {"input": ASKED, "tools": [FUNCTION]})).json
        call = next(item for item in first["output"] if item["type"] == "function_call")
        sent = [
            {"role": "user", "content": ASKED},
            *({"type": "item_reference", "id": item["id"]} for item in first["output"] if item is not call),
            call,
            {"type": "function_call_output", "call_id": call["call_id"], "output": "a box"},
        ]
        await post(app, episode, "responses", {"input": sent, "tools": [FUNCTION]})
        assert [turn.parent for turn in episode.record.turns][1:] == [0]

    play(scene)


def test_what_claude_code_puts_before_its_system_message_is_not_read() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        sent: list[Any] = [{"role": "user", "content": ASKED}]
        for number in range(2):
            billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={number};"}
            system = [billing, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
            answer = await post(app, episode, "messages", {"max_tokens": 999, "system": system, "messages": sent})
            sent += [{"role": "assistant", "content": answer.json["content"]}, {"role": "user", "content": "more"}]
        assert [turn.parent for turn in episode.record.turns][1:] == [0]
        assert "billing" not in shown(episode.record.ids_through(1))

    play(scene)


SCHEMA = {"type": "json_schema", "name": "x", "schema": {}}
PREFILLED = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]


@pytest.mark.parametrize(
    ("api", "fields", "name"),
    [
        ("messages", {"output_config": {"format": SCHEMA}}, "response_format"),
        ("messages", {"output_format": SCHEMA}, "response_format"),
        ("messages", {"messages": PREFILLED}, "prefill"),
        ("messages", {"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look"}}, "tool_choice"),
        (
            "messages",
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "parallel_tool_calls",
        ),
        ("messages", {"tools": [{**TOOL, "strict": True}]}, "strict"),
        ("responses", {"text": {"format": SCHEMA}}, "response_format"),
        ("responses", {"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice"),
        ("responses", {"tools": [FUNCTION], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ("responses", {"tools": [{**FUNCTION, "strict": True}]}, "strict"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat/completions", {"response_format": {"type": "json_object"}, "stream": True}, "response_format"),
    ],
)
def test_a_form_that_nothing_enforces_is_answered_named_and_counted(
    api: str, fields: dict[str, Any], name: Unenforced
) -> None:
    asked = {"input": "x"} if api == "responses" else {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}

    async def scene(episode: Episode, app: GatewayApp) -> None:
        for _ in range(2):
            answer = await post(app, episode, api, {**asked, **fields})
            assert (answer.status, answer.headers[b"x-asyncrl-not-enforced"]) == (200, name.encode())
        plain = await post(app, episode, api, asked)
        assert b"x-asyncrl-not-enforced" not in plain.headers
        assert episode.open.counts.scores["unenforced"] == 2.0
        assert episode.gateway.unenforced == [name]

    with capture_logs() as logs:
        play(scene)
    assert [log["field"] for log in logs if log["event"] == "gateway.not_enforced"] == [name]


def test_a_model_is_found_by_any_name() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await call(app, "GET", f"{episode.path}/v1/models/openai/gpt-5")
        assert (answer.status, answer.json["id"]) == (200, "openai/gpt-5")

    play(scene)


def test_the_prompt_itself_is_recognised_in_every_dialect() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        await post(app, episode, "responses", {"input": ASKED})
        await post(app, episode, "messages", {"max_tokens": 99, "messages": [{"role": "user", "content": ASKED}]})
        await post(app, episode, "chat/completions", {"messages": [{"role": "user", "content": ASKED}]})
        assert [turn.parent for turn in episode.record.turns] == [FROM_PROMPT] * 3

    play(scene)
