"""All seams have the same methods."""

import pytest

from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engine import EngineLoad, MeasuredEngine, MultiProcessEngine, Request, Seam
from asyncrl.rollout.engines.seams import make_seam
from asyncrl.testing import FakeEngine, FakeSeam
from tests.rollout.engines.chat_families import tokenizer

SEAMS: dict[str, Seam] = {
    "chat": make_seam(tokenizer("qwen3")),
    "text": make_seam(tokenizer("qwen3"), is_chat=False),
    "fake": FakeSeam(),
}


@pytest.mark.parametrize("seam", SEAMS.values(), ids=SEAMS)
def test_an_answer_follows_a_turn(seam: Seam) -> None:
    chat = [{"role": "user", "content": "a b"}]
    turn = seam.opening(chat)
    assert seam.after(chat, turn)
    assert seam.said(turn, "stop").text == seam.text(turn)
    assert seam.message(turn)["role"] == "assistant"
    assert seam.quoted(chat) == chat, "nothing in it is a control token"
    retold = seam.retold([*chat, seam.message(turn), *chat], turn)
    assert retold is None or seam.text(retold)


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
