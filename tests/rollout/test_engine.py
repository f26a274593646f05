"""All boundaries have the same methods."""

import pytest

from asyncrl.engine import EngineLoad, MeasuredEngine, MultiProcessEngine, Request, TurnBoundary
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from asyncrl.testing import FakeBoundary, FakeEngine
from tests.rollout.engines.chat_families import tokenizer

BOUNDARIES: dict[str, TurnBoundary] = {
    "chat": make_boundary(tokenizer("qwen3")),
    "text": make_boundary(tokenizer("qwen3"), is_chat=False),
    "fake": FakeBoundary(),
}


@pytest.mark.parametrize("boundary", BOUNDARIES.values(), ids=BOUNDARIES)
def test_an_answer_follows_a_turn(boundary: TurnBoundary) -> None:
    chat = [{"role": "user", "content": "a b"}]
    turn = boundary.opening(chat)
    assert boundary.after(chat, turn)
    assert boundary.said(turn, "stop").text == boundary.text(turn)
    assert boundary.message(turn)["role"] == "assistant"
    assert boundary.quoted(chat) == chat, "nothing in it is a control token"
    retold = boundary.retold([*chat, boundary.message(turn), *chat], turn)
    assert retold is None or boundary.text(retold)


# ── test engine ───────────────────────────────────────────────────────────────────────────────
# The engine interface: defaults of its values, and its runtime check.


class InProcesses(FakeEngine):
    ranks = 2

    async def receiver(self, member: object, send: object, weights: object, /, *, interface: str) -> None:
        raise NotImplementedError


def test_an_engine_with_ranks_and_a_receiver_is_a_multi_process_engine() -> None:
    assert isinstance(InProcesses(), MultiProcessEngine)
    assert not isinstance(FakeEngine(), MultiProcessEngine)


def test_a_request_starts_at_its_prompt_unless_told_otherwise() -> None:
    assert Request(prompt_ids=[1], sampling=Sampling(max_tokens=1), seed=0).resume_from is None


class Measured(FakeEngine):
    def measure(self) -> EngineLoad:
        return EngineLoad(kv_usage=0.5, num_preempted=0, num_running=1, num_waiting=0)


def test_an_engine_that_tells_its_load_is_a_measured_engine() -> None:
    assert isinstance(Measured(), MeasuredEngine)
    assert not isinstance(FakeEngine(), MeasuredEngine)
