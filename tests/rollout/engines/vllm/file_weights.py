"""Worker extension for tests: loads new weights from files beside the model instead of from a trainer."""

import hashlib
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from asyncrl.rollout.engines.vllm.reload import Reload
from asyncrl.rollout.engines.vllm.worker import WorkerExtension


class FromFiles(WorkerExtension):
    """Reads version 3 from ``v3.safetensors``."""

    vllm_config: Any
    model_runner: Any
    device: torch.device

    def asyncrl_swap(self, policy_version: int) -> None:
        folder = Path(self.vllm_config.model_config.model)
        tensors = load_file(folder / f"v{policy_version}.safetensors")
        new = Reload(self.model_runner.get_model(), self.vllm_config, self.device)
        new.add(tensors)
        new.finish()

    def asyncrl_report(self, logprobs_mode: str) -> None:
        """Have the sampler report other log-probs."""
        self.model_runner.sampler.logprobs_mode = logprobs_mode

    def asyncrl_digest(self) -> str:
        """sha256 in hex of the model's tensors as vLLM has laid them out."""
        model, digest = self.model_runner.get_model(), hashlib.sha256()
        for name, tensor in sorted(chain(model.named_parameters(), model.named_buffers())):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()
