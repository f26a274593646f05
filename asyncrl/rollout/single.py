"""One completion after its prompt: a trajectory without an environment."""

from asyncrl.rollout.engine import Completion, Engine, Request
from asyncrl.rollout.engine_calls import EngineCalls
from asyncrl.rollout.episodes.tool_calls.thoughts import opened_by
from asyncrl.rollout.results import Sampled


class SingleCompletion:
    def __init__(self, engine: Engine, calls: EngineCalls, request: Request) -> None:
        self._engine = engine
        self._calls = calls
        self._request = request

    async def run(self) -> Sampled:
        """Sample it. Raises `EngineError`."""
        completion = await self._calls.complete(self._request)
        opened = opened_by(self._request.prompt_ids, self._engine.decode)
        return self._sampled(completion, self._engine.decode(completion.completion_ids), opened)

    def written(self) -> Sampled | None:
        """Tokens so far; None if there are none."""
        written = self._calls.written(self._request) or self._request.resume_from
        return self._sampled(written, "") if written else None

    def _sampled(self, completion: Completion, text: str, opened: str = "") -> Sampled:
        return Sampled(prompt_ids=self._request.prompt_ids, completion=completion, text=text, opened=opened)
