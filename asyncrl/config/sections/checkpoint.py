"""Settings of checkpoints."""

from asyncrl.config.sections.section import Count, Limit, Section


class Checkpoint(Section, frozen=True, kw_only=True):
    """Checkpoints: model, optimizer and position in the run. The manifest is written last."""

    every_steps: Limit = 0
    """Optimizer steps between two checkpoints; 0 or -1: only the last, so a dead trainer starts over [save_freq]."""
    keep: Count = 2
    """Number of newest checkpoints to keep [max_actor_ckpt_to_keep]."""
    keep_best: bool = False
    """Also keep the checkpoint with the best evaluation; ``checkpoints/best.json`` names it."""
    best_metric: str = "accuracy"
    """With ``keep_best``: ``accuracy``, or another evaluation metric of which more is better."""
    copy_to_broker: bool = True
    """
    If the trainer does not see the run directory, copy each checkpoint there before its steps count as saved: any
    machine can then go on with the run. False saves the bandwidth, and ties the run to the trainer's machine.
    """
