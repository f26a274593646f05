"""Requests to a JSON service, repeated until it answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError, VerifierError
from tests.reward.service import Service

endpoint = pytest.importorskip("asyncrl.reward.verifiers.remote", exc_type=ImportError)


def posted(*answers: tuple[int, str], deadline_s: float = 20.0, token_file: str = "") -> tuple[Any, Service]:
    """Answer or error of one request, and the service it was sent to."""

    async def post() -> tuple[Any, Service]:
        async with Service(*answers).running() as service:
            client = endpoint.Endpoint(service.url, token_file=token_file, deadline_s=deadline_s, wait_s=0.001)
            try:
                return await client.post({"completion": "é\x00"}), service
            except VerifierError as error:
                return error, service
            finally:
                await client.aclose()

    return asyncio.run(post())


def test_the_answer_is_read_as_json() -> None:
    answer, service = posted((200, '{"score": 0.5}'))

    assert answer == {"score": 0.5}
    assert service.requests == [{"completion": "é\x00"}]
    assert "content-type: application/json" in service.headers[0].lower()


def test_a_busy_service_gets_the_request_again() -> None:
    answer, service = posted((503, "later"), (429, ""), (0, ""), (200, "1"))

    assert answer == 1
    assert len(service.requests) == 4


def test_a_service_that_stays_busy_is_a_retryable_failure() -> None:
    error, _ = posted((503, "out of memory"), deadline_s=0.2)

    assert isinstance(error, VerifierError)
    assert error.retryable
    assert "within 0.2 s: status 503: 'out of memory'" in str(error)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "no such page"), "status 404: 'no such page'"),
        ((200, "<html>"), "something else than JSON: '<html>'"),
        ((200, "[" * 100_000), "something else than JSON"),
        ((200, " " * 2_000_000), "more than 1048576 bytes"),
    ],
)
def test_an_answer_that_will_not_change_is_a_failure_at_once(answer: tuple[int, str], said: str) -> None:
    error, service = posted(answer)

    assert isinstance(error, VerifierError)
    assert not error.retryable
    assert said in str(error)
    assert len(service.requests) == 1


def test_a_service_that_is_not_running_is_waited_for() -> None:
    async def post() -> None:
        client = endpoint.Endpoint("http://127.0.0.1:9/", deadline_s=0.1, wait_s=0.001)
        try:
            await client.post({})
        finally:
            await client.aclose()

    with pytest.raises(VerifierError, match="ConnectError"):
        asyncio.run(post())


def test_the_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")

    _, service = posted((200, "1"), token_file=str(tmp_path / "token"))

    assert "authorization: bearer s3cret" in service.headers[0].lower()
    with pytest.raises(ConfigError, match="cannot be read"):
        posted((200, "1"), token_file=str(tmp_path / "none"))


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected http://"):
        endpoint.Endpoint("localhost:8000", deadline_s=1.0, wait_s=0.1)
