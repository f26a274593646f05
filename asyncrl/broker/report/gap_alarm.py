"""
A warning that the sampler does not compute what the trainer does: said once a run, at the first step that shows it.

Rollouts that differ from the trainer do not stop a run. They bias every ratio in the loss, and the reward curve hides
it for hours.
"""

from collections.abc import Iterable, Mapping

from asyncrl.config.sections import Config

BOUND = {"float32": 1e-4, "bfloat16": 0.1}
"""Nats, mean of a step: some 50 and 5 times what an engine in order differs by, which is 2e-6 and 2e-2."""
MIN_TOKENS = 64
"""The mean of fewer says little: one unlikely token may differ a hundred times as much as the others."""
ADVICE = (
    "with the same weights the rollouts' log-probs are not the trainer's, so every ratio in the loss is off by that; "
    "check that the engine returns log-probs of the distribution it samples from (vLLM: "
    "logprobs_mode=processed_logprobs), that it computes in model.dtype, and that it has the trainer's model and the "
    "weights of the version it names"
)


class GapAlarm:
    """
    Looks at each step's log-prob gap.

    Args:
        lines: Of metrics.jsonl so far: an earlier life of the broker warned of these.
    """

    def __init__(self, config: Config, lines: Iterable[Mapping[str, float]] = ()) -> None:
        self._bound = config.trainer.logprob_gap_warn or BOUND[config.model.dtype]
        self._is_said = any(self._exceeds(line) for line in lines)

    def check(self, line: Mapping[str, float]) -> dict[str, float | str]:
        """What to warn of, given the metrics of one more step; empty if all is well, or it was said before."""
        if self._is_said or not self._exceeds(line):
            return {}
        self._is_said = True
        seen = {key: line[key] for key in ("step", "logprob_gap_mean", "logprob_gap_max", "logprob_gap_tokens")}
        return {**seen, "bound": self._bound, "advice": ADVICE}

    def _exceeds(self, line: Mapping[str, float]) -> bool:
        # NaN is read back as None; a step that made one was skipped, and that was said.
        mean = line.get("logprob_gap_mean") or 0.0
        return line.get("logprob_gap_tokens", 0.0) >= MIN_TOKENS and mean > self._bound
