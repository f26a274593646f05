"""Worker extension for tests: loads new weights from files beside the model instead of from a trainer."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from asyncrl.rollout.engines.vllm.reload import Reload
from asyncrl.rollout.engines.vllm.worker import WorkerExtension


class FromFiles(WorkerExtension):
    """Reads version 3 from ``v3.safetensors``."""

    vllm_config: Any
    model_runner: Any

    def asyncrl_swap(self, policy_version: int) -> None:
        folder = Path(self.vllm_config.model_config.model)
        tensors = load_file(folder / f"v{policy_version}.safetensors")
        new = Reload(self.model_runner.get_model(), self.vllm_config)
        new.add(tensors)
        new.finish()
