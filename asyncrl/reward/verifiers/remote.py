"""Verifier that asks a service of your own over HTTP."""

from typing import Any

from asyncrl.reward.endpoint import EndpointOptions
from asyncrl.reward.verifier import VerifierInput


class Remote(EndpointOptions, frozen=True, kw_only=True):
    """
    Posts the `VerifierInput` to the service, which answers with a number, or an object with ``score`` and metrics.

        {"prompt": ..., "completion": ..., "answer": ..., "data_source": ..., "extra": {}, "finish_reason": "stop",
         "num_tokens": 117, "turns": [], "episode_reward": null, "scores": {}}                         ─▶ {"score": 1.0}
    """

    async def __call__(self, inputs: VerifierInput, /) -> Any:
        return await self.endpoint.post(inputs)
