"""Settings of sampling."""

from typing import Annotated, Literal

from asyncrl.config.sections.section import LIVE, Count, Fraction, Limit, NonNegative, Section
from asyncrl.messages.trajectory import Sampling

ToolParser = Literal["auto", "response_template", "hermes", "qwen_xml", "glm", "llama_json", "deepseek", "none"]


class SamplingConfig(Section, frozen=True, kw_only=True):
    """Sampling of trajectories. The recorded log-probs are those of this distribution."""

    max_tokens: Annotated[Count, LIVE] = 128
    """
    Longest completion, in tokens [data.max_response_length]. Set live, at most to the value that the run was started
    with, it is for the groups admitted from then on.
    """
    temperature: NonNegative = 1.0
    """Divisor of the logits, at least 0.01: below it trajectories of a group are all equal."""
    top_p: Fraction = 1.0
    """Probability mass of the likeliest tokens to sample from; 1 keeps the whole vocabulary."""
    top_k: Limit = 0
    """Number of likeliest tokens to sample from; 0 or -1 keeps the whole vocabulary."""
    replay_mask: bool = False
    """
    With ``top_p`` or ``top_k``: record which ids they left for each token, and have the trainer renormalise its
    log-probs over the same ids, so that ratios compare like with like. About 4 bytes for each id.
    """
    stop: list[str] = []
    """Texts that end a completion."""
    seeded: bool = True
    """
    Draw each trajectory with a seed of its own, so that one that is sampled again under the same weights gets the same
    tokens, on any node. False draws all of an engine from one generator, which vLLM does faster: on an NPU a seed costs
    one kernel per completion and step. Evaluations are always seeded.
    """

    def sampling(self) -> Sampling:
        """The settings as the message type that a lease carries."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            replay_mask=self.replay_mask,
        )
