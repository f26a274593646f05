"""Pictures that agent programs send: in all dialects, whole and in history."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from asyncrl.data.images import describe
from asyncrl.engine import ChatMessage
from asyncrl.episodes.gateway.app import GatewayApp
from asyncrl.episodes.gateway.episode import EarlierTurns
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.pictures import EpisodePictures, PictureLimits
from asyncrl.episodes.record import RecordedTurn, TurnContext
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from tests.conftest import draw_picture
from tests.episodes.gateway.doubles import PICTURE, Answer, Episode, call, completion, shown

RED, BLUE, OF_PROMPT = (draw_picture(16, 16, seed=seed) for seed in range(3))


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def url(file: bytes) -> str:
    return f"data:image/png;base64,{encoded(file)}"


def chat_picture(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(file), "detail": "low"}}


def block(file: bytes) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(file)}}


def an_episode(**options: Any) -> Episode:
    return Episode(lambda before: f"seen {before.count(PICTURE)}", **options)


def play(scene: Callable[[Episode, GatewayApp], Awaitable[None]], episode: Episode | None = None) -> Episode:
    episode = episode or an_episode()

    async def main() -> None:
        async with asyncio.timeout(20):
            await scene(episode, GatewayApp(episode.gateway))

    asyncio.run(main())
    return episode


def files_of(episode: Episode) -> list[list[bytes]]:
    """Files of the pictures in the context of each turn."""
    return [list(episode.conversation.pictures.files(turn.images)) for turn in episode.record.turns]


def test_chat_completions_show_pictures_and_send_them_back() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        look = {"role": "user", "content": [{"type": "text", "text": "see "}, chat_picture(RED)]}
        messages: list[ChatMessage] = [look]
        for file in (BLUE, RED):
            answer = await call(app, "POST", f"{episode.path}/v1/chat/completions", {"messages": messages})
            messages += answer.message, {"role": "user", "content": [chat_picture(file)]}
        messages[-1]["role"] = "tool"
        await call(app, "POST", f"{episode.path}/v1/chat/completions", {"messages": messages})

    episode = play(scene)
    assert [turn.text for turn in episode.record.turns] == ["seen 1", "seen 2", "seen 3"]
    assert [turn.parent for turn in episode.record.turns] == [FROM_NOTHING, 0, 1], "history is compared by digest"
    assert files_of(episode) == [[RED], [BLUE], [RED]]
    assert [request.images for request in episode.engine.requests] == [(RED,), (RED, BLUE), (RED, BLUE, RED)]
    assert len(episode.conversation.pictures.shown) == 2, "a file is kept once"


def test_responses_show_pictures_in_messages_and_in_the_output_of_tools() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        path = f"{episode.path}/v1/responses"
        look = {
            "role": "user",
            "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url(RED)}],
        }
        first = (await call(app, "POST", path, {"input": [look]})).json
        output = [{"type": "input_image", "image_url": url(BLUE)}]
        found = {"type": "function_call_output", "call_id": "call_0_0", "output": output}
        await call(app, "POST", path, {"input": [found], "previous_response_id": first["id"]})

    episode = play(scene)
    assert [turn.parent for turn in episode.record.turns] == [FROM_NOTHING, 0]
    assert files_of(episode) == [[RED], [BLUE]]


def test_messages_show_pictures_in_blocks_and_in_results_of_tools() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        path, asked = (
            f"{episode.path}/v1/messages",
            {"role": "user", "content": [block(RED), {"type": "text", "text": "see"}]},
        )
        first = (await call(app, "POST", path, {"messages": [asked], "max_tokens": 50})).json
        result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "it"}, block(BLUE)]}
        said = {"role": "assistant", "content": first["content"]}
        more = {"role": "user", "content": [result, block(RED)]}
        count = await call(app, "POST", f"{path}/count_tokens", {"messages": [asked, said, more]})
        assert count.json["input_tokens"] > 0
        await call(app, "POST", path, {"messages": [asked, said, more], "max_tokens": 50})

    episode = play(scene)
    assert [turn.parent for turn in episode.record.turns] == [FROM_NOTHING, 0]
    assert files_of(episode) == [[RED], [BLUE, RED]]
    assert f"tool\nit{PICTURE}" in shown(episode.record.turns[1].context_ids)


def test_another_picture_in_the_history_begins_a_root() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        path = f"{episode.path}/v1/chat/completions"
        asked = {"role": "user", "content": [chat_picture(RED)]}
        first = await call(app, "POST", path, {"messages": [asked]})
        other = {"role": "user", "content": [chat_picture(BLUE)]}
        await call(app, "POST", path, {"messages": [other, first.message, {"role": "user", "content": "and now"}]})

    episode = play(scene)
    assert [turn.parent for turn in episode.record.turns] == [FROM_NOTHING, FROM_NOTHING]
    assert episode.open.counts["root_edited_history"] == 1
    assert files_of(episode) == [[RED], [BLUE]]


@pytest.mark.parametrize("form", ["marks", "pictures"])
def test_the_prompt_may_be_sent_with_its_marks_or_with_its_pictures(form: str) -> None:
    pictures = EpisodePictures(PictureLimits(4, 1 << 20), [describe(OF_PROMPT)], [OF_PROMPT])
    prompt = [{"role": "user", "content": "<image>How many?"}]
    sent: ChatMessage = prompt[0]
    if form == "pictures":
        sent = {"role": "user", "content": [chat_picture(OF_PROMPT), {"type": "text", "text": "How many?"}]}

    async def scene(episode: Episode, app: GatewayApp) -> None:
        path = f"{episode.path}/v1/chat/completions"
        first = await call(app, "POST", path, {"messages": [sent]})
        more = {"role": "user", "content": [chat_picture(RED)]}
        await call(app, "POST", path, {"messages": [sent, first.message, more]})
        await call(app, "POST", path, {"messages": [sent, {"role": "assistant", "content": "9"}, more]})

    episode = play(scene, an_episode(prompt=prompt, pictures=pictures))
    assert [turn.parent for turn in episode.record.turns] == [FROM_PROMPT, 0, FROM_NOTHING]
    assert files_of(episode) == [[], [RED], [OF_PROMPT, RED]], "a root has the prompt's picture again"
    assert [request.images for request in episode.engine.requests] == [(OF_PROMPT,), *[(OF_PROMPT, RED)] * 2]


def test_a_history_that_the_template_renders_anew_has_its_pictures_again() -> None:
    gateway = Gateway("http://test", as_template=True)

    async def scene(episode: Episode, app: GatewayApp) -> None:
        path = f"{episode.path}/v1/chat/completions"
        asked = {"role": "user", "content": [chat_picture(RED)]}
        first = await call(app, "POST", path, {"messages": [asked]})
        await call(
            app, "POST", path, {"messages": [asked, first.message, {"role": "user", "content": [chat_picture(BLUE)]}]}
        )

    episode = play(scene, an_episode(gateway=gateway))
    assert [turn.parent for turn in episode.record.turns] == [FROM_NOTHING, FROM_NOTHING]
    assert files_of(episode) == [[RED], [RED, BLUE]]
    assert len(episode.conversation.pictures.shown) == 2


async def refused(episode: Episode, app: GatewayApp, part: dict[str, Any], role: str = "user") -> Answer:
    body = {"messages": [{"role": role, "content": [part]}, {"role": "user", "content": "?"}]}
    return await call(app, "POST", f"{episode.path}/v1/chat/completions", body)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://a.org/b.png"}},
            "at 'https://a.org/b.png': a rollout fetches none",
        ),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}, "a picture is not in base64"),
        (chat_picture(b"no picture"), "a picture of 10 bytes cannot be read"),
        (chat_picture(draw_picture(64, 64, 7)[:-900]), "a picture is damaged"),
        (chat_picture(draw_picture(64, 64)), "bytes in one episode, more than environment.picture_bytes = 2,000"),
        ({"type": "image_url"}, "has a picture at ''"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(part: dict[str, Any], problem: str) -> None:
    most = 2000 if "picture_bytes" in problem else 1 << 20
    pictures = EpisodePictures(PictureLimits(4, most))

    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await refused(episode, app, part)
        assert answer.status == 400
        assert problem in answer.json["error"]["message"]

    episode = play(scene, an_episode(pictures=pictures))
    assert pictures.shown == {}
    assert episode.record.turns == []


def test_the_assistant_says_no_pictures_and_an_episode_has_so_many() -> None:
    async def scene(episode: Episode, app: GatewayApp) -> None:
        answer = await refused(episode, app, chat_picture(RED), role="assistant")
        assert "a picture of the assistant, which writes only text" in answer.json["error"]["message"]
        assert (await refused(episode, app, chat_picture(RED))).status == 200
        assert (await refused(episode, app, chat_picture(RED))).status == 200
        answer = await refused(episode, app, chat_picture(BLUE))
        assert (answer.status, answer.code, episode.open.limit) == (400, "pictures_exceeded", "pictures")

    play(scene, an_episode(pictures=EpisodePictures(PictureLimits(1, 1 << 20))))


def test_a_program_that_runs_again_gets_a_turn_only_after_the_same_pictures() -> None:
    red, blue = describe(RED), describe(BLUE)
    earlier = EarlierTurns([RecordedTurn(FROM_PROMPT, [1, 2], completion([3]), images=[red])])
    assert earlier.take(TurnContext(FROM_PROMPT, [1, 2], [blue])) is None
    assert earlier.take(TurnContext(FROM_PROMPT, [1, 2])) is None
    assert earlier.take(TurnContext(FROM_PROMPT, [1, 2], [red])) is not None
    assert red.digest == sha256(RED).digest()
