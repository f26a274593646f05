"""vLLM worker extension that times vLLM's own weight loading of the same tensors."""

import time
from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader.reload import inplace

from asyncrl.rollout.engines.vllm.worker import WorkerExtension


class BareLoad(WorkerExtension):
    """The worker extension of asyncrl with one more method."""

    vllm_config: Any
    model_runner: Any

    def asyncrl_bare_load(self, path: str) -> None:
        """Load the staged tensors again with vLLM's `reload_weights`, and write the seconds to the file ``path``."""
        if self._asyncrl_receiver is None:
            raise RuntimeError("no version is staged: call receiver() and transfer a version first")
        tensors = self._asyncrl_receiver.receiver.weights()
        start_s = time.perf_counter()
        inplace.reload_weights(self.vllm_config, self.model_runner.get_model(), iter(tensors.items()), None, True)
        Path(path).write_text(str(time.perf_counter() - start_s))
