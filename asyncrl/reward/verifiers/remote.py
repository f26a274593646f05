"""A service of your own that judges, over HTTP."""

from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta, Struct

from asyncrl.reward.endpoint import Endpoint
from asyncrl.reward.verifier import VerifierInput


class Remote(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """
    What the service answers to a POST of the sample: a number, or an object with ``score`` and further numbers.

        {"prompt": ..., "completion": ..., "answer": ..., "data_source": ..., "extra": {}, "finish_reason": "stop",
         "num_tokens": 117}                                                                            ─▶ {"score": 1.0}
    """

    url: str
    token_file: str = ""
    """Holds what is sent as ``Authorization: Bearer``."""
    deadline_s: Annotated[float, Meta(gt=0)] = 8.0
    """For one sample, all tries together; below ``reward.timeout_s``."""
    wait_s: Annotated[float, Meta(gt=0)] = 0.1
    """Before the second try; then twice as long each time, up to 2 s."""

    def __post_init__(self) -> None:
        """Refuse what is no URL."""
        self._endpoint  # noqa: B018

    async def __call__(self, sample: VerifierInput, /) -> Any:
        """
        The service's answer.

        Raises:
            VerifierError: There was none.
        """
        return await self._endpoint.ask(sample)

    @cached_property
    def _endpoint(self) -> Endpoint:
        return Endpoint(self.url, token_file=self.token_file, deadline_s=self.deadline_s, wait_s=self.wait_s)
