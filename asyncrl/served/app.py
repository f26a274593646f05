"""
The models of ``[models]`` for the code of one node: an OpenAI server on loopback, below a capability for each.

    environment, tool, reward, agent program ── POST /m/<capability>/v1/chat/completions ─▶ AskedModel ─▶ its server
                                                /v1/completions, /v1/embeddings, /v1/responses
                                                GET /m/<capability>/v1/models

``ASYNCRL_MODELS`` tells the code of these addresses. The keys of the servers stay here.
"""

import asyncio
import secrets
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.config.sections.models import INSTALL, ServedModel, hidden_keys, key_of
from asyncrl.environment import VARIABLE
from asyncrl.episodes.gateway.app import App, Disconnected, Exchange, allow, check_key, described
from asyncrl.episodes.gateway.gateway import CAPABILITY_BYTES
from asyncrl.episodes.gateway.request import RefusedRequest
from asyncrl.errors import ConfigError, ServiceFailed
from asyncrl.messages.session import ModelUse
from asyncrl.wire import http
from asyncrl.wire.addresses import host_of

if TYPE_CHECKING:
    from asyncrl.served.model import AskedModel
    from asyncrl.wire.endpoint import HttpAnswer

APIS = ("chat/completions", "completions", "embeddings", "responses")
LOOPBACK = "tcp://127.0.0.1:0"
OK = 200
EXPECTED = msgspec.json.Decoder(dict[str, Any])


class ModelsApp(App):
    """ASGI application; ``models`` are by the digests of their capabilities."""

    def __init__(self, models: Mapping[bytes, "AskedModel"]) -> None:
        super().__init__(Counter())
        self._models = models

    async def _route(self, path: str, exchange: Exchange) -> None:
        match path.split("/")[1:]:
            case ["m", capability, "v1", *api] if model := self._models.get(_digest(capability)):
                check_key(exchange, capability)
                await self._answer(model, "/".join(api), exchange)
            case _:
                raise RefusedRequest(404, "not_found", "there is nothing here")

    async def _answer(self, model: "AskedModel", api: str, exchange: Exchange) -> None:
        if api == "models":
            allow(exchange, "GET", "HEAD")
            listed = {"object": "list", "data": [described(model.name)], "has_more": False}
            return await exchange.answer(200, msgspec.json.encode(listed))
        if api not in APIS:
            raise RefusedRequest(404, "not_found", f"a model answers to {', '.join(APIS)} and models")
        allow(exchange, "POST")
        request = _read(await self._body(exchange))
        try:
            status, body = await _unless_gone(model.ask(api, request), exchange)
        except ServiceFailed as error:  # all attempts were made here
            raise RefusedRequest(503 if error.retryable else 502, "model_failed", str(error), retry=False) from error
        if status != OK and not _is_object(body):
            message = f"model {model.name!r}: its server answered with status {status}: {http.start_of(body)}"
            raise RefusedRequest(status if 400 <= status < 500 else 502, "model_failed", message, retry=False)
        return await exchange.answer(status, body)


async def _unless_gone(asking: Coroutine[Any, Any, "HttpAnswer"], exchange: Exchange) -> "HttpAnswer":
    """Await an answer, and give it up once nobody waits for it, which raises `Disconnected`."""
    answering, gone = asyncio.create_task(asking), asyncio.create_task(exchange.until_gone())
    try:
        await asyncio.wait({answering, gone}, return_when=FIRST_COMPLETED)
        if not answering.done():
            raise Disconnected
        return answering.result()
    finally:
        answering.cancel()
        gone.cancel()


def _is_object(body: bytes) -> bool:
    try:
        EXPECTED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _read(raw: bytes) -> dict[str, Any]:
    try:
        request = EXPECTED.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedRequest(400, "invalid_request", f"the body is no JSON object: {error}") from None
    if request.get("stream"):
        raise RefusedRequest(
            400, "unsupported_parameter", "answers of models are not streamed; leave out stream", param="stream"
        )
    return request


def _digest(capability: str) -> bytes:
    return sha256(capability.encode("utf-8", "replace")).digest()


# ── open ──────────────────────────────────────────────────────────────────────────────────────


class OpenModels:
    """
    Models that the code of this node may ask.

    Attributes:
        variables: Variables for the processes that run the code; they hide the keys of the servers.
    """

    def __init__(self, asked: "Sequence[AskedModel]" = (), variables: Mapping[str, str] | None = None) -> None:
        self._asked = asked
        self.variables = variables or {}

    def uses(self) -> dict[str, ModelUse]:
        """Use of each model so far, by its name."""
        return {model.name: model.use for model in self._asked}


@asynccontextmanager
async def open_models(
    models: Mapping[str, ServedModel], *, address: str = LOOPBACK, folder: Path | None = None
) -> AsyncIterator[OpenModels]:
    """
    Serve the models to the code of this node until the block ends; without any, nothing listens.

    Args:
        address: ``tcp://HOST:PORT`` whose host listens; port 0 takes a free one.
        folder: Folder for the answers that are kept; None keeps them in memory.

    Raises:
        ConfigError: A variable with a key is not set, a package is not installed, or nothing can listen.
    """
    if not models:
        yield OpenModels()
        return
    try:
        from asyncrl.served.model import AskedModel  # noqa: PLC0415  its client is an extra
    except ImportError as error:
        raise ConfigError(f"[models] needs httpx, which is not installed: {INSTALL}") from error
    async with AsyncExitStack() as stack:
        asked: dict[str, AskedModel] = {}
        for name, settings in models.items():
            path = folder and folder / f"{name}.sqlite"
            model = AskedModel(name, settings, key=key_of(name, settings), path=path)
            stack.push_async_callback(model.aclose)
            asked[secrets.token_urlsafe(CAPABILITY_BYTES)] = model
        app = ModelsApp({_digest(capability): model for capability, model in asked.items()})
        serving = http.serve(app, address, setting="environment.gateway", needed_by="[models]", extra="models")
        url = await stack.enter_async_context(serving)
        access = {
            model.name: {"base_url": f"{url}/m/{capability}/v1", "key": capability}
            for capability, model in asked.items()
        }
        variables = {
            **hidden_keys(models),
            **http.without_proxy(host_of(address)),
            VARIABLE: msgspec.json.encode(access).decode(),
        }
        yield OpenModels(list(asked.values()), variables)
