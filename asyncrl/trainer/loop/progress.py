"""Work of a trainer since it started, for heartbeats, lines of metrics, and scrapes."""

from collections.abc import Iterator, Mapping

from asyncrl.messages.weights import Transferred
from asyncrl.observe.metrics.table import Sample

OF_LAST_STEP = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
"""Metric of each value of a step."""


class Progress:
    """Running totals, and the last step. Iterating gives the samples of a scrape."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """Tokens trained."""
        self.last_publish = Transferred(0, -1, 0.0, 0)
        """The last transfer of weights, which took no time if there was none."""
        self._num_steps = 0
        self._last_step: Mapping[str, float] = {}
        self._num_publishes = 0
        self._publish_s = 0.0
        self._publish_bytes = 0

    def stepped(self, metrics: Mapping[str, float]) -> None:
        """A step is done; ``metrics`` are those of its `Stepped`."""
        self._num_steps += 1
        self.num_tokens += int(metrics["num_tokens"])
        self._last_step = metrics

    def published(self, done: Transferred) -> None:
        """A transfer of weights has ended well."""
        self.last_publish = done
        self._num_publishes += 1
        self._publish_s += done.seconds
        self._publish_bytes += done.num_bytes

    def __iter__(self) -> Iterator[Sample]:
        yield Sample("asyncrl_trainer_steps_total", self._num_steps)
        yield Sample("asyncrl_trainer_tokens_total", self.num_tokens)
        for key, name in OF_LAST_STEP.items():
            if key in self._last_step:
                yield Sample(f"asyncrl_trainer_{name}", self._last_step[key])
        yield Sample("asyncrl_trainer_publishes_total", self._num_publishes)
        yield Sample("asyncrl_trainer_publish_bytes_total", self._publish_bytes)
        yield Sample("asyncrl_trainer_publish_seconds_total", self._publish_s)
