"""
Settings of sampling, and their bounds: a run learns from differences within a group, so its trajectories must be
able to differ.

                     0     .01          .1         1
    temperature      ┝━━━━━┿━━━━━━━━━━━━┿━━━━━━━━━━▶
    top_p            ┝━━━━━┿━━━━━━━━━━━━┿━━━━━━━━━━┥
    training         refused  advised against
    evaluation       T = 0 alone is greedy
"""

from typing import TYPE_CHECKING, Annotated, Literal

from asyncrl.config.sections.section import LIVE, Count, Fraction, Limit, NonNegative, Section
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Sampling

if TYPE_CHECKING:  # it imports this module
    from asyncrl.config.sections.evaluation import Evaluation

ToolParser = Literal[
    "auto",
    "response_template",
    "hermes",
    "qwen_xml",
    "glm",
    "llama_json",
    "deepseek",
    "deepseek_v3_1",
    "kimi",
    "mistral",
    "harmony",
    "gemma",
    "plain",
    "none",
]

LEAST = 0.01
"""
Smallest temperature and top-p that sample. At this temperature a logit that is lower by 1 is e^100 times less likely,
and the rounding of a bfloat16 logit is several nats; vLLM takes it for all lower ones but 0, whatever it was told. With
a smaller top-p the likeliest token is left alone unless a hundred others are as likely.
"""
LOW = 0.1
"""Temperature and top-p below which completions of a prompt are nearly the same."""


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

    def check(self) -> None:
        """Raise `ConfigError` if completions that are to be compared with each other would all be equal."""
        if "" in self.stop:
            raise ConfigError("sampling.stop has an empty text, which would end every completion; remove it")
        if cause := greedy(self):
            raise ConfigError(
                f"sampling.{cause}: sampling is greedy or nearly so, and trajectories of a group are all equal; use a "
                f"temperature and top_p of at least {LEAST:g}, and not top_k = 1"
            )


def greedy(sampling: "SamplingConfig | Evaluation", bound: float = LEAST) -> str:
    """Setting with which only the likeliest token is sampled, with its value; empty if others are too."""
    if sampling.temperature < bound:
        return f"temperature is {sampling.temperature:g}"
    if sampling.top_p < bound:
        return f"top_p is {sampling.top_p:g}"
    return "top_k is 1" if sampling.top_k == 1 else ""
