"""
What runs in each of vLLM's worker processes: receiving weights, and putting them into the model.

    asyncrl_connect ─▶ a thread with a `Receiver` ── staged while decoding goes on
    asyncrl_swap ────▶ staging ─▶ the model           between pause and resume

vLLM mixes `WorkerExtension` into its worker class; every method of it can be called on all workers at once. The calls
block the engine, so nothing in them waits for the network.
"""

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.rollout.engines.vllm import guard, reload
from asyncrl.rollout.engines.vllm.channel import Invitation
from asyncrl.rollout.engines.vllm.receiving import ReceivingEnd
from asyncrl.weights.groups.device import STAGED_ON, staging_device

guard.follow_node()  # vLLM imports this module first of all in a worker, and loading a model takes long.
reload.ready_processor()


class WorkerExtension:
    """Mixed into vLLM's worker, whose attributes it uses. Names begin with ours, so that they cannot clash."""

    _asyncrl_end: ReceivingEnd | None = None
    _asyncrl_reload: reload.Reload | None = None
    """Of the version that is arriving, if it replaces the model's weights as it comes."""

    def asyncrl_connect(self, invitation: str) -> None:
        """Receive what the node announces from now on. Takes the place of an earlier connection, if there was one."""
        invited = msgspec.json.decode(invitation, type=Invitation)
        self._asyncrl_end = ReceivingEnd(
            invited,
            local_rank=self.vllm_config.parallel_config.rank,  # type: ignore[attr-defined]
            device=self._asyncrl_staging_device(invited.weights.backend),
            on_bucket=self._asyncrl_load if invited.weights.staging == "bucket" else None,
        )
        self._asyncrl_end.start()

    def asyncrl_swap(self, policy_version: int) -> None:
        """
        Put the staged version into the model, or finish the one that was put there as it came.

        Raises:
            TransferError: Another version was received, or none, or it lacks some of the model's parameters.
        """
        received = self._asyncrl_end.receiver.policy_version if self._asyncrl_end else None
        if self._asyncrl_end is None or received != policy_version:
            raise TransferError(f"policy_version {policy_version} is to be swapped in, but {received} was received")
        if self._asyncrl_reload is None:
            self._asyncrl_load(self._asyncrl_end.receiver.weights(), are_borrowed=False)
        if self._asyncrl_reload is not None:
            self._asyncrl_reload.finish()
        self._asyncrl_reload = None

    def _asyncrl_staging_device(self, backend: str) -> torch.device:
        """Of this worker's kind its own; vLLM copies from any other."""
        own: torch.device = self.device  # type: ignore[attr-defined]
        return own if own.type == STAGED_ON[backend] else staging_device(backend)

    def _asyncrl_load(self, tensors: Mapping[str, Tensor], *, are_borrowed: bool = True) -> None:
        """Some of a version. While it is incomplete nothing may decode."""
        if self._asyncrl_reload is None:
            self._asyncrl_reload = reload.Reload(self.model_runner.get_model(), self.vllm_config)  # type: ignore[attr-defined]
        self._asyncrl_reload.add(tensors, are_borrowed=are_borrowed)
