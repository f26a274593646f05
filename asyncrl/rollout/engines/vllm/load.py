"""
Load of vLLM, from the statistics that its scheduler makes at every step.

    step ─▶ SchedulerStats, IterationStats ─▶ LoadMeter ─▶ EngineLoad

vLLM makes them only for a ``stat_loggers`` that it was started with, and then also keeps Prometheus metrics.
"""

from typing import Any

from asyncrl.engine import EngineLoad


class LoadMeter:
    """One of vLLM's ``stat_loggers``: `AsyncLLM.from_vllm_config(..., stat_loggers=[LoadMeter])`."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._cache = vllm_config.cache_config
        self._num_preempted = 0
        self._scheduler: Any = None
        """Newest `SchedulerStats`; None before the first step."""

    def load(self) -> EngineLoad:
        """Load after the newest step."""
        stats = self._scheduler
        if stats is None:
            return EngineLoad(0.0, 0, 0, 0, self._kv_tokens)
        # Newer releases count requests that are held back apart.
        num_waiting = stats.num_waiting_reqs + getattr(stats, "num_skipped_waiting_reqs", 0)
        usage, num_running = float(stats.kv_cache_usage), int(stats.num_running_reqs)
        return EngineLoad(usage, self._num_preempted, num_running, num_waiting, self._kv_tokens)

    @property
    def _kv_tokens(self) -> int:
        return int((self._cache.num_gpu_blocks or 0) * self._cache.block_size)

    # ── called by vLLM ──────────────────────────────────────────────────────────────────────

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: object, **more: object) -> None:
        """Take the statistics of one step; each may be None."""
        if scheduler_stats is not None:
            self._scheduler = scheduler_stats
        if iteration_stats is not None:
            self._num_preempted += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None: ...

    def log(self) -> None: ...

    def record_sleep_state(self, is_awake: int, level: int) -> None: ...
