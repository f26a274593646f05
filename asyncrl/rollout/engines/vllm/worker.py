"""
Extension of vLLM's worker processes that receives weights and loads them into the model.

    asyncrl_check ───────▶ ids, log-probs, layout of weights   before the first request
    asyncrl_connect ─────▶ a thread with a `Receiver` ── stages while the engine decodes, of several workers in one
    asyncrl_swap ────────▶ staging ─▶ the model                between pause and resume
    asyncrl_swap_shared ─▶ the node's staging ─▶ the model     between pause and resume; each worker loads its part

vLLM mixes `WorkerExtension` into its worker class and can call its methods on all workers. Calls block the engine, so
nothing in them waits for the network.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.rollout.engines.vllm import guard, reload
from asyncrl.rollout.engines.vllm.inspection import never_sample, refusal, use_processed_logprobs
from asyncrl.rollout.engines.vllm.relay import ReceiverSetup, ReceiverThread
from asyncrl.weights.groups.device import staging_device
from asyncrl.weights.shared import SharedTensors

# ── worker ────────────────────────────────────────────────────────────────────────────────────

guard.follow_node()  # At import: vLLM imports this module before it loads the model.
reload.enable_amx()


class WorkerExtension:
    """Mixed into vLLM's worker and uses its attributes. All names start with ``asyncrl`` to avoid clashes."""

    _asyncrl_receiver: ReceiverThread | None = None
    _asyncrl_reload: reload.Reload | None = None
    """The version being loaded while it arrives, with ``weights.staging = "bucket"``."""

    def asyncrl_check(self, never: list[int]) -> str:
        """
        Have the sampler report the log-probs that asyncrl needs, and draw none of the ids ``never``.

        Returns the reason if this worker cannot be used.
        """
        worker: Any = self
        use_processed_logprobs(worker.model_runner)
        never_sample(worker.model_runner.get_model(), never, worker.device)
        return refusal(worker.model_runner, kind=worker.device.type)

    def asyncrl_connect(self, setup_json: str) -> None:
        """
        Connect to the node and take part in its transfers, if it has a rank for this worker.

        Replaces an earlier connection.
        """
        setup, worker = msgspec.json.decode(setup_json, type=ReceiverSetup), cast("Any", self)
        rank = worker.vllm_config.parallel_config.rank
        self._asyncrl_receiver = None
        if rank >= setup.member.ranks:
            return
        self._asyncrl_receiver = ReceiverThread(
            setup,
            local_rank=rank,
            device=staging_device(setup.weights.backend, worker.device),
            beside=worker.device,
            on_bucket=self._asyncrl_load if setup.weights.staging == "bucket" else None,
        )
        self._asyncrl_receiver.start()

    def asyncrl_swap(self, policy_version: int) -> None:
        """Load the staged version, or finish one loaded on arrival. Raises `TransferError` if it is not complete."""
        received = self._asyncrl_receiver.receiver.policy_version if self._asyncrl_receiver else None
        if self._asyncrl_receiver is None or received != policy_version:
            raise TransferError(f"cannot swap in version {policy_version}: the newest received is {received}")
        if self._asyncrl_reload is None:
            self._asyncrl_load(self._asyncrl_receiver.receiver.weights(), are_borrowed=False)
        self._asyncrl_finish()

    def asyncrl_swap_shared(self, shared_json: str) -> None:
        """Load the version that the node holds in shared memory. Raises `TransferError` if it cannot be mapped."""
        shared = msgspec.json.decode(shared_json, type=SharedTensors)
        self._asyncrl_load(shared.map(), are_borrowed=False)
        self._asyncrl_finish()

    def _asyncrl_load(self, tensors: Mapping[str, Tensor], *, are_borrowed: bool = True) -> None:
        """Load a part of a version. Nothing may decode until it is complete."""
        if self._asyncrl_reload is None:
            worker: Any = self
            self._asyncrl_reload = reload.Reload(worker.model_runner.get_model(), worker.vllm_config, worker.device)
        self._asyncrl_reload.add(tensors, are_borrowed=are_borrowed)

    def _asyncrl_finish(self) -> None:
        """Complete the version whose parts were loaded."""
        if self._asyncrl_reload is not None:
            self._asyncrl_reload.finish()
        self._asyncrl_reload = None
