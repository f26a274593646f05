"""
The gateway as an ASGI application, for any server, or mounted in a host's.

    POST /e/<capability>/v1/chat/completions     GET /e/<capability>/v1/models, /v1/models/<id>
    POST /e/<capability>/v1/responses            PUT /e/<capability>/reward
    POST /e/<capability>/v1/messages             GET /healthz
    POST /e/<capability>/v1/messages/count_tokens
         /e/<capability>/seats/1/v1/...          the same of another seat

Three dialects ask for the same turns. Nothing of a request is read before its capability is known, and a key in its
header must agree.
"""

import asyncio
import secrets
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from asyncrl.episodes.environment import Reward, Score
from asyncrl.episodes.gateway import anthropic, chat, responses
from asyncrl.episodes.gateway.episode import Counts, OpenEpisode
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.gateway.reply import KEEP_ALIVE, Reply, Shown
from asyncrl.episodes.gateway.request import ChatRequest, RefusedRequest, Wishes
from asyncrl.log import get_logger
from asyncrl.messages.verdict_limits import MAX_METRICS, problem_of
from asyncrl.wire import http
from asyncrl.wire.http import Header, Receive, Scope, Send, lifespan

# ── exchange ──────────────────────────────────────────────────────────────────────────────────
# One HTTP exchange over ASGI: a bounded body with a deadline, an answer, and whether the client went away.

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
EVENTS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))


class Dialect(Protocol):
    """Words of one API for requests and replies; each is a module."""

    def read(self, raw: bytes, wishes: Wishes, /) -> ChatRequest:
        """Decode and check a request. Raises `RefusedRequest`."""

    def whole(self, reply: Reply, request: ChatRequest, shown: Shown, /) -> bytes:
        """The whole answer as JSON."""

    def stream(self, reply: Reply, request: ChatRequest, shown: Shown, /) -> bytes:
        """The whole answer as server-sent events, the last one included."""

    def refusal(self, refused: RefusedRequest, /) -> Mapping[str, object]:
        """The form of an error."""

    def broken(self, refused: RefusedRequest, /) -> bytes:
        """The event with which a stream ends that cannot be completed."""


DIALECTS: Mapping[str, Dialect] = {"chat/completions": chat, "responses": responses, "messages": anthropic}
"""Dialects by their paths below ``/v1``."""


class Disconnected(Exception):
    """The client went away."""


class BodyBudget:
    """Memory for bodies that are being received, of all connections together."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def take(self, num_bytes: int) -> None:
        if num_bytes > self._left:
            raise RefusedRequest(503, "busy", "too many bodies are being received; try again", retry=True)
        self._left -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        self._left += num_bytes


class Exchange:
    """A request without its path, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.dialect: Dialect = chat
        """Dialect of the answer."""
        self.is_started = False
        """True once the status was sent."""
        self.is_read = False
        """True once all of the body has arrived."""
        self._headers: Sequence[Header] = scope["headers"]
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self._headers if key.lower() == name), None)

    async def body(self, limit: int, budget: BodyBudget, timeout_s: float) -> bytes:
        """
        The body of the request.

        Raises:
            Refused: It is too large, or did not arrive in time.
            Disconnected: The client went away meanwhile.
        """
        if (length := self.header(b"content-length")) and length.isdigit() and int(length[:20]) > limit:
            raise _too_large(limit)
        taken = 0
        parts = []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    event = await self._receive()
                    if event["type"] != "http.request":
                        raise Disconnected
                    part = event.get("body", b"")
                    budget.take(len(part))
                    taken += len(part)
                    if taken > limit:
                        raise _too_large(limit)
                    parts.append(part)
                    if not event.get("more_body", False):
                        self.is_read = True
                        return b"".join(parts)
        except TimeoutError:
            raise RefusedRequest(408, "timeout", f"the body did not arrive within {timeout_s:g} s") from None
        finally:
            budget.give_back(taken)

    async def until_gone(self) -> None:
        """Wait until the client goes away; called after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, headers: Iterable[Header] = (JSON,)) -> None:
        await self.start(status, (*headers, (b"content-length", b"%d" % len(body))))
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, part: bytes, *, is_last: bool = False) -> None:
        """Send a part of an answer that was started."""
        await self._send({"type": "http.response.body", "body": part, "more_body": not is_last})


def _too_large(limit: int) -> RefusedRequest:
    return RefusedRequest(413, "body_too_large", f"the body has more than {limit} bytes")


# ── app ───────────────────────────────────────────────────────────────────────────────────────

log = get_logger()

MAX_BODY_BYTES = 32 << 20
"""Largest request: some millions of tokens as text, or 24 MiB of pictures in base64."""
MAX_REWARD_BYTES = 64 << 10
MAX_SENT_METRICS = MAX_METRICS - len(Counts().scores)
"""Metrics of a program; the gateway adds its own."""
ALL_BODIES_BYTES = 128 << 20
"""Bodies of all connections that are being received."""
BODY_S = 30.0
"""Seconds for a body to arrive."""
KEEP_ALIVE_S = 10.0
"""Seconds of sampling after which a stream gets a comment, so that nothing on the way takes it for dead."""


class SentReward(Struct, forbid_unknown_fields=True):
    reward: Reward | None = None
    """A number, or a list with one for each seat."""
    score: Reward | None = None
    """Another name of the reward."""
    completions: dict[str, float] = {}
    """Rewards of single completions, by their ids; the reward is their sum unless it is given, too."""
    metrics: dict[str, float] = {}


REWARD = msgspec.json.Decoder(SentReward)


class App:
    """Base of ASGI applications whose errors have the form of a dialect; ``counts`` are its own of what went wrong."""

    def __init__(self, counts: Counter[str], *, body_s: float = BODY_S) -> None:
        self._counts = counts
        self._body_s = body_s
        self._budget = BodyBudget(ALL_BODIES_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        exchange = Exchange(scope, receive, send)
        try:
            await self._route(scope["path"].removeprefix(scope.get("root_path", "")), exchange)
        except Disconnected:
            self._counts["disconnected"] += 1
        except RefusedRequest as refused:
            await self._refuse(refused, exchange)
        except Exception as error:  # noqa: BLE001  a fault here must not end the server of all other episodes
            log.error("gateway.failed", error=f"{type(error).__name__}: {error}")
            await self._refuse(RefusedRequest(500, "internal_error", "the gateway failed; its log has more"), exchange)
        return None

    async def _route(self, path: str, exchange: Exchange) -> None:
        """Answer a request. Raises `RefusedRequest`, or `Disconnected`."""
        raise NotImplementedError

    async def _body(self, exchange: Exchange, limit: int = MAX_BODY_BYTES) -> bytes:
        return await exchange.body(limit, self._budget, self._body_s)

    async def _refuse(self, refused: RefusedRequest, exchange: Exchange) -> None:
        self._counts[f"refused_{refused.status}"] += 1
        if not exchange.is_started:
            rest = [] if exchange.is_read else [CLOSE]  # nobody reads a body that may still come
            body = msgspec.json.encode(exchange.dialect.refusal(refused))
            await exchange.answer(refused.status, body, [JSON, *refused.headers, *rest])


class GatewayApp(App):
    """ASGI application of a gateway; stateless but for that."""

    def __init__(self, gateway: Gateway, *, keep_alive_s: float = KEEP_ALIVE_S, body_s: float = BODY_S) -> None:
        super().__init__(gateway.counts, body_s=body_s)
        self._gateway = gateway
        self._keep_alive_s = keep_alive_s

    async def _route(self, path: str, exchange: Exchange) -> None:
        match path.split("/")[1:]:
            case ["healthz"]:
                allow(exchange, "GET", "HEAD")
                await exchange.answer(200, b'{"status":"ok"}')
            case ["e", capability, *rest] if episode := self._gateway.find(capability):
                name, rest = (rest[1], rest[2:]) if rest[:1] == ["seats"] and len(rest) > 1 else ("0", rest)
                below = "/".join(rest[1:]).removesuffix("/count_tokens")
                exchange.dialect = DIALECTS.get(below, chat)
                check_key(exchange, capability)
                await self._episode_route(episode, _seat(name, episode.num_seats), rest, exchange)
            case _:
                raise RefusedRequest(404, "not_found", "there is nothing here")

    async def _episode_route(self, episode: OpenEpisode, seat: int, rest: list[str], exchange: Exchange) -> None:
        match rest:
            case ["v1", *api] if "/".join(api) in DIALECTS:
                allow(exchange, "POST")
                await self._complete(episode, seat, exchange)
            case ["v1", "messages", "count_tokens"]:
                allow(exchange, "POST")
                num = episode.num_tokens(await self._request(episode, seat, exchange))
                await exchange.answer(200, msgspec.json.encode({"input_tokens": num}))
            case ["v1", "models"]:
                allow(exchange, "GET", "HEAD")
                listed = {"object": "list", "data": [described(self._gateway.model)], "has_more": False}
                await exchange.answer(200, msgspec.json.encode(listed))
            case ["v1", "models", *name] if any(name):
                allow(exchange, "GET", "HEAD")
                await exchange.answer(200, msgspec.json.encode(described("/".join(name))))
            case ["reward"]:
                allow(exchange, "PUT", "POST")
                raw = await self._body(exchange, MAX_REWARD_BYTES)
                completions, score = _read_score(raw, episode.num_seats)
                episode.reward_turns(completions)
                episode.score = score or episode.score
                await exchange.answer(200, b"{}")
            case _:
                raise RefusedRequest(404, "not_found", "there is nothing here")

    async def _request(self, episode: OpenEpisode, seat: int, exchange: Exchange) -> ChatRequest:
        request = exchange.dialect.read(await self._body(exchange), episode.wishes())
        return structs.replace(await episode.taken(request), seat=seat)

    async def _complete(self, episode: OpenEpisode, seat: int, exchange: Exchange) -> None:
        request = await self._request(episode, seat, exchange)
        sampling = episode.reply(request)
        gone = asyncio.create_task(exchange.until_gone())
        try:
            if request.stream:
                await self._wait_and_keep_alive(request, sampling, gone, exchange)
            reply = await _reply(sampling, gone)
        except Disconnected:
            episode.count("undelivered")
            episode.was_lost(request, sampling)
            raise
        except RefusedRequest as refused:
            episode.count(f"refused_{refused.code}")
            if not exchange.is_started:
                raise
            return await exchange.write(exchange.dialect.broken(refused), is_last=True)
        finally:
            gone.cancel()
        await _deliver(reply, request, episode, exchange)
        return episode.was_delivered(reply)

    async def _wait_and_keep_alive(
        self, request: ChatRequest, sampling: "asyncio.Task[Reply]", gone: "asyncio.Task[None]", exchange: Exchange
    ) -> None:
        """Write comments until the reply is there. The status is sent with the first: an early refusal has its own."""
        while not (await asyncio.wait({sampling, gone}, timeout=self._keep_alive_s, return_when=FIRST_COMPLETED))[0]:
            if not exchange.is_started:
                await exchange.start(200, [*EVENTS, *_undone(request)])
            await exchange.write(KEEP_ALIVE)


async def _reply(sampling: "asyncio.Task[Reply]", gone: "asyncio.Task[None]") -> Reply:
    """The reply, once it is there. Raises `Refused`, or `Disconnected` if nobody waits for it."""
    await asyncio.wait({sampling, gone}, return_when=FIRST_COMPLETED)
    if gone.done():
        raise Disconnected
    if sampling.cancelled():
        raise RefusedRequest(404, "not_found", "the episode is over")
    return sampling.result()


async def _deliver(reply: Reply, request: ChatRequest, episode: OpenEpisode, exchange: Exchange) -> None:
    shown = Shown(
        usage=request.include_usage,
        prompt_ids=episode.prompt_ids(reply) if request.token_ids else None,
        text=episode.text if request.logprobs else None,
    )
    if not request.stream:
        body = exchange.dialect.whole(reply, request, shown)
        return await exchange.answer(200, body, [JSON, *_undone(request)])
    if not exchange.is_started:
        await exchange.start(200, [*EVENTS, *_undone(request)])
    return await exchange.write(exchange.dialect.stream(reply, request, shown), is_last=True)


def described(name: str) -> dict[str, object]:
    """Entry of a list of models, in the forms of OpenAI and Anthropic at once."""
    shown = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "asyncrl", **shown}


def allow(exchange: Exchange, *methods: str) -> None:
    if exchange.method not in methods:
        raise RefusedRequest(405, "method_not_allowed", f"the method must be {methods[0]}")


def check_key(exchange: Exchange, capability: str) -> None:
    """Refuse a key that is sent, in either header, and is another one."""
    bearer, sent = exchange.header(b"authorization"), exchange.header(b"x-api-key")
    scheme, _, key = bearer.partition(b" ") if bearer is not None else (b"bearer", b"", capability.encode())
    keys = [key.strip() if scheme.lower() == b"bearer" else b"", capability.encode() if sent is None else sent.strip()]
    if not all(secrets.compare_digest(one, capability.encode()) for one in keys):
        raise RefusedRequest(
            401,
            "invalid_api_key",
            "the key is not that of the URL: send the one that was given with it (OPENAI_API_KEY, ANTHROPIC_API_KEY)",
        )


def _undone(request: ChatRequest) -> list[Header]:
    """Headers that name what the request asked for and did not get."""
    named = ((b"x-asyncrl-ignored", request.ignored), (b"x-asyncrl-not-enforced", request.unenforced))
    return [(header, ",".join(names).encode()) for header, names in named if names]


def _seat(name: str, num_seats: int) -> int:
    """Number of a seat in a path; raises `RefusedRequest` if the episode has none of it."""
    if name.isascii() and name.isdigit() and int(name[:9]) < num_seats:
        return int(name[:9])
    raise RefusedRequest(
        404,
        "not_found",
        f"there is no seat {name[:9]!r}: environment.seats is {num_seats}, expected 0 .. {num_seats - 1}",
    )


def _read_score(raw: bytes, num_seats: int) -> tuple[dict[str, float], Score | None]:
    """Rewards of single completions, and the word on the episode; None if there are rewards of completions alone."""
    try:
        sent = REWARD.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RefusedRequest(
            400, "invalid_reward", f'the body must be {{"reward": 1.0, "metrics": {{}}}}: {error}'
        ) from None
    if sent.score is not None and sent.reward is not None:
        message = "the body has both reward and score, which are one number; name it once"
        raise RefusedRequest(400, "invalid_reward", message, param="score")
    reward = sent.score if sent.reward is None else sent.reward
    if len(sent.metrics) > MAX_SENT_METRICS:
        message = f"there are {len(sent.metrics)} metrics, expected at most {MAX_SENT_METRICS}"
        raise RefusedRequest(400, "invalid_reward", message, param="metrics")
    if clash := Counts.clash_of(sent.metrics):
        raise RefusedRequest(400, "invalid_reward", f"the body has {clash}", param="metrics")
    rewards = reward if isinstance(reward, list) else [reward or 0.0] * num_seats
    if len(rewards) != num_seats:
        message = f"there are {len(rewards)} rewards, expected {num_seats}, one for each of environment.seats"
        raise RefusedRequest(400, "invalid_reward", message, param="reward")
    for one in rewards:
        if problem := problem_of(one, sent.metrics, None):
            raise RefusedRequest(400, "invalid_reward", problem)
    for completion, one in sent.completions.items():
        if problem := problem_of(one, {}, None):
            raise RefusedRequest(400, "invalid_reward", f"of {completion[:80]!r} {problem}", param="completions")
    says_all = reward is not None or sent.metrics or not sent.completions
    return sent.completions, Score(reward=reward, metrics=sent.metrics) if says_all else None


# ── server ────────────────────────────────────────────────────────────────────────────────────
# Serves the gateway's app, in the event loop of the rollout.


@asynccontextmanager
async def serve(gateway: Gateway, address: str) -> AsyncIterator[str]:
    """
    Serve until the block ends, and set ``gateway.url``.

    Args:
        address: ``tcp://HOST:PORT`` (``environment.gateway``); port 0 takes a free one.

    Yields:
        The URL, ``http://HOST:PORT``.

    Raises:
        ConfigError: uvicorn is not installed, or the address cannot be bound.
    """
    app, setting = GatewayApp(gateway), "environment.gateway"
    async with http.serve(app, address, setting=setting, needed_by="an agent program", extra="agents") as url:
        gateway.url = url
        yield url
