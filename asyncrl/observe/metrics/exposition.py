"""
Samples as text for Prometheus. `prometheus_client` (extra ``metrics``) is imported here alone, when it is asked for.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from asyncrl.errors import BrokenInvariant, ConfigError
from asyncrl.observe.metrics.table import METRICS, Metric, Sample
from asyncrl.version import VERSION

STANDARD = "process_"
"""Beginning of the names that `prometheus_client` reads from /proc itself."""


class Exposition:
    """
    Text of all metrics of one process.

    Args:
        labels: ``role`` and ``node`` of the process, at every sample.
        samples: Called for each text.

    Raises:
        ConfigError: `prometheus_client` is not installed.
    """

    def __init__(self, labels: Mapping[str, str], samples: Callable[[], Iterable[Sample]]) -> None:
        self._client = _client()
        self._labels = dict(labels)
        self._samples = samples
        self._process = self._client.ProcessCollector(registry=None)
        self._build_info = Sample("asyncrl_build_info", 1, {"version": VERSION, "python": platform.python_version()})

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, in the format that ``accept``, a request's header, asks for."""
        encode, content_type = self._client.exposition.choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Any]:
        """Families of samples, as a registry of `prometheus_client` gives them."""
        yield from self._standard()
        found: dict[str, list[Sample]] = {}
        for sample in (self._build_info, *self._samples()):
            found.setdefault(_checked(sample).name, []).append(sample)
        for name, samples in found.items():
            yield self._family(METRICS[name], samples)

    def _standard(self) -> Iterator[Any]:
        for family in self._process.collect():
            for i, sample in enumerate(family.samples):
                family.samples[i] = sample._replace(labels=self._labels | sample.labels)
            yield family

    def _family(self, metric: Metric, samples: Iterable[Sample]) -> Any:
        kinds = self._client.metrics_core
        kind = kinds.CounterMetricFamily if metric.kind == "counter" else kinds.GaugeMetricFamily
        family = kind(metric.name, metric.meaning, labels=[*self._labels, *metric.labels])
        for sample in samples:
            family.add_metric(
                [*self._labels.values(), *(sample.labels[label] for label in metric.labels)], sample.value
            )
        return family


def require_client() -> None:
    """Raise `ConfigError` unless `prometheus_client` is installed."""
    _client()


def _client() -> Any:
    try:
        import prometheus_client  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError("--metrics needs prometheus_client: pip install 'asyncrl[metrics]'") from error
    return prometheus_client


def _checked(sample: Sample) -> Sample:
    """Raise `BrokenInvariant` for what the table does not have: nobody would find it in the documentation."""
    metric = METRICS.get(sample.name)
    if metric is None or metric.name.startswith(STANDARD):
        raise BrokenInvariant(f"{sample.name} is not in the table of metrics")
    if sample.labels.keys() != metric.labels.keys() or any(
        allowed and sample.labels[label] not in allowed for label, allowed in metric.labels.items()
    ):
        raise BrokenInvariant(f"{sample.name} has labels {dict(sample.labels)}, the table {dict(metric.labels)}")
    return sample
