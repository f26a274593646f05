"""
Checks of sampling: a run learns from differences within a group, so its trajectories must be able to differ.

                     0     .01          .1         1
    temperature      ┝━━━━━┿━━━━━━━━━━━━┿━━━━━━━━━━▶
    top_p            ┝━━━━━┿━━━━━━━━━━━━┿━━━━━━━━━━┥
    training         refused  advised against
    evaluation       T = 0 alone is greedy
"""

from asyncrl.config.config import Config
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.errors import ConfigError

LEAST = 0.01
"""
Smallest temperature and top-p that sample. At this temperature a logit that is lower by 1 is e^100 times less likely,
and the rounding of a bfloat16 logit is several nats; vLLM takes it for all lower ones but 0, whatever it was told. With
a smaller top-p the likeliest token is left alone unless a hundred others are as likely.
"""
LOW = 0.1
"""Temperature and top-p below which completions of a prompt are nearly the same."""


def check_sampling(config: Config) -> None:
    """Raise `ConfigError` if completions of a prompt that are to be compared with each other would all be equal."""
    sampling = config.sampling
    if "" in sampling.stop:
        raise ConfigError("sampling.stop has an empty text, which would end every completion; remove it")
    if cause := greedy(sampling):
        raise ConfigError(
            f"sampling.{cause}: sampling is greedy or nearly so, and trajectories of a group are all equal; use a "
            f"temperature and top_p of at least {LEAST:g}, and not top_k = 1"
        )
    _check_evaluation(config.evaluation)


def sampling_advice(config: Config) -> list[str]:
    """Sentence of advice on sampling whose trajectories hardly differ."""
    if not (cause := greedy(config.sampling, LOW)):
        return []
    return [f"sampling.{cause}: trajectories of a group are nearly the same, and a run learns from their differences"]


def greedy(sampling: SamplingConfig | Evaluation, bound: float = LEAST) -> str:
    """Setting with which only the likeliest token is sampled, with its value; empty if others are too."""
    if sampling.temperature < bound:
        return f"temperature is {sampling.temperature:g}"
    if sampling.top_p < bound:
        return f"top_p is {sampling.top_p:g}"
    return "top_k is 1" if sampling.top_k == 1 else ""


def _check_evaluation(evaluation: Evaluation) -> None:
    temperature = evaluation.temperature
    if 0 < temperature < LEAST:
        raise ConfigError(
            f"evaluation.temperature is {temperature:g}: such values are not sampled alike by all engines; use 0, "
            f"which is greedy, or at least {LEAST:g}"
        )
    if evaluation.samples > 1 and (cause := greedy(evaluation)):
        raise ConfigError(
            f"evaluation.samples is {evaluation.samples}, but evaluation.{cause}: greedy completions of a prompt are "
            f"all equal; sample with a temperature above 0, or use one sample"
        )
    if temperature == 0:
        for key in ("top_p", "top_k"):
            if getattr(evaluation, key) != getattr(Evaluation(), key):
                raise ConfigError(f"evaluation.{key} is only read with a temperature above 0; remove it")
