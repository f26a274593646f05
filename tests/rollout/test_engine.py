"""The engine interface: defaults of its values, and its runtime check."""

from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engine import EngineLoad, MeasuredEngine, MultiProcessEngine, Request
from asyncrl.testing import FakeEngine


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
