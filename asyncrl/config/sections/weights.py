"""Settings of weight transfer."""

from typing import Literal

from asyncrl.config.sections.section import Count, Positive, Section


class Weights(Section, frozen=True, kw_only=True):
    """Transfer of weights from trainer to rollouts."""

    backend: Literal["auto", "gloo", "shared", "nccl", "hccl"] = "auto"
    """
    Collective library, and the memory from which it sends: ``gloo`` host, ``nccl`` CUDA device, ``hccl`` Ascend NPU.
    On a device that is two buckets at each end; whole versions are on the host. ``shared`` crosses memory of one
    machine instead. The broker decides ``auto`` for all nodes: shared if trainer and rollouts share devices, which
    nccl and hccl refuse; nccl or hccl if ``trainer.device`` and ``rollout.device`` are that kind of device, where an
    ``auto`` of vLLM counts as the trainer's; and gloo otherwise.
    """
    interface: str = ""
    """
    Network interface on which each node forms its groups: a name (``eth1``), a network (``10.1.0.0/16``) or an address
    of this machine. Empty takes the interface of the node's route to the broker; ``--interface`` overrides it.
    """
    bucket_bytes: Count = 64 << 20
    """Bytes of one collective [update_weights_bucket_megabytes]."""
    deadline_s: Positive = 30.0
    """
    Seconds for one transfer with group formation; late rollouts are named and left behind. A silent rollout is left
    behind after ``broker.notice_s``, unless ``staging`` is ``bucket``.
    """
    verify: bool = False
    """Compare checksums after every transfer. Deltas and the first transfer of a group are always compared."""
    delta: bool = False
    """
    Send only changes since the last version, losslessly, and compare checksums. Pays if the network is slower than
    about 0.5 GB/s, the speed at which one core finds the changes. The trainer keeps a third copy of the weights.
    """
    staging: Literal["whole", "bucket"] = "whole"
    """
    Memory in which a rollout stages weights: a whole copy on the host, one for all workers of an engine, or a bucket on
    each of their devices. ``bucket`` pauses decoding during the whole transfer, and an engine whose transfer failed
    must be restarted.
    """
    anchor_every: Count = 20
    """
    Versions after which all weights are stored at the spool again, for rollouts that join with ``--weights spool``. In
    between, only changes are stored. Without such a rollout nothing is.
    """
