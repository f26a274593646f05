"""
Settings that operators change while the run goes on, and the books that follow them.

    SetSettings ─assigned─▶ checked values ─▶ apply ─▶ configuration, window, learning rate, evaluations, lengths
    replayed `SettingsSet` ───────────────────┘
"""

from collections.abc import Mapping, Sequence

from asyncrl.broker.staleness_control import BY, KEY
from asyncrl.broker.training import TrainingGroups
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.config import Config
from asyncrl.config.live import Value, assigned, with_values


class LiveSettings:
    def __init__(self, config: Config, training: TrainingGroups, evaluation: EvaluationBook) -> None:
        self.config = config
        """Configuration with the settings as they are by now."""
        self.values: dict[str, Value] = {}
        """Settings that were changed, by key."""
        self.is_auto = config.schedule.staleness == "auto"
        """True if the broker itself sets the staleness: it was started with ``auto``, and nobody has set a number."""
        self._start = config
        self._training = training
        self._evaluation = evaluation

    @property
    def nodes_config(self) -> Config:
        """Configuration for nodes that join: they make room for the longest completions that may be set again."""
        return with_values(self.config, {"sampling.max_tokens": self._start.sampling.max_tokens})

    def assigned(self, assignments: Sequence[str]) -> dict[str, Value]:
        """Checked values of ``key=value`` texts that change something; raises `ConfigError`."""
        return assigned(self.config, self._start, assignments)

    def apply(self, values: Mapping[str, Value], by: str) -> None:
        """Apply checked values that ``by`` has set, now or when their record is replayed."""
        self.values |= values
        if (staleness := values.get(KEY)) is not None:
            self.is_auto = by == BY or staleness == "auto"
        self.config = config = with_values(self.config, values)
        self._training.resize(config.schedule.window)
        self._training.batches.lr = config.trainer.lr
        self._evaluation.every_versions = config.evaluation.every_versions
        if (max_tokens := config.sampling.max_tokens) != self._start.sampling.max_tokens:
            self._training.admission.max_tokens = max_tokens
            self._evaluation.max_tokens = config.evaluation.max_tokens or max_tokens
        else:
            self._training.admission.max_tokens = self._evaluation.max_tokens = 0
