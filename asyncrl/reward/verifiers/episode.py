"""The environment's own word on an episode."""

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.verifier import VerifierInput


class Episode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Reward of the environment: the sum over the turns, or what its ``score`` returned. Its metrics are those of the
    verdict, so an environment whose best reward is not 1 sets ``correct``.
    """

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float]:
        if inputs.episode_reward is None:
            raise VerifierError("reward function 'episode' got a completion without turns: it needs an [environment]")
        return {**inputs.scores, "score": inputs.episode_reward}
