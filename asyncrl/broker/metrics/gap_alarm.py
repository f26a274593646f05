"""
Warning, once per run, at the first step whose rollouts do not compute the same log-probs as the trainer.

Such a difference does not stop a run, but it biases every ratio in the loss, and the reward curve hides it for hours.
"""

from collections.abc import Iterable, Mapping

from asyncrl.config.config import Config

BOUND = {"float32": 1e-4, "bfloat16": 0.1}
"""Mean gap of a step, nats: about 50 and 5 times that of a correct engine, which is 2e-6 and 2e-2."""
MIN_TOKENS = 64
"""A mean over fewer tokens is unreliable: one unlikely token may differ a hundred times as much as the others."""
ADVICE = (
    "with the same weights the rollouts' log-probs are not the trainer's, so every ratio in the loss is off by that; "
    "check that the engine returns log-probs of the distribution it samples from (vLLM: "
    "logprobs_mode=processed_logprobs), that it computes in model.dtype, and that it has the trainer's model and the "
    "weights of the version it names"
)


class GapAlarm:
    """Checks the log-prob gap of each step. It has warned already if one of the earlier ``lines`` exceeds the bound."""

    def __init__(self, config: Config, lines: Iterable[Mapping[str, float]] = ()) -> None:
        self._bound = config.trainer.logprob_gap_warn or BOUND[config.model.dtype]
        self._has_warned = any(self._exceeds(line) for line in lines)

    def check(self, line: Mapping[str, float]) -> dict[str, float | str]:
        """Fields of the warning, given the metrics of a new step; empty if there is nothing to warn about."""
        if self._has_warned or not self._exceeds(line):
            return {}
        self._has_warned = True
        seen = {key: line[key] for key in ("step", "logprob_gap_mean", "logprob_gap_max", "logprob_gap_tokens")}
        return {**seen, "bound": self._bound, "advice": ADVICE}

    def _exceeds(self, line: Mapping[str, float]) -> bool:
        # NaN is read back as None; the trainer skips a step with a NaN gap and reports that itself.
        mean = line.get("logprob_gap_mean") or 0.0
        return line.get("logprob_gap_tokens", 0.0) >= MIN_TOKENS and mean > self._bound
