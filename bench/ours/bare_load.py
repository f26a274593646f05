"""A worker's extension for benches: what vLLM itself takes for the same tensors, with nothing of ours around it."""

import time
from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader.reload import inplace

from asyncrl.rollout.engines.vllm.worker import WorkerExtension


class BareLoad(WorkerExtension):
    """Beside what every worker can do."""

    vllm_config: Any
    model_runner: Any

    def asyncrl_bare_load(self, path: str) -> None:
        """Load what lies staged once more, by vLLM's own `reload_weights`, and write down the seconds in ``path``."""
        if self._asyncrl_receiver is None:
            raise RuntimeError("nothing was staged yet")
        tensors = self._asyncrl_receiver.receiver.weights()
        start_s = time.perf_counter()
        inplace.reload_weights(self.vllm_config, self.model_runner.get_model(), iter(tensors.items()), None, True)
        Path(path).write_text(str(time.perf_counter() - start_s))
