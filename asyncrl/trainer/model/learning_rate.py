"""Learning rate as a pure function of the step, so checkpoints need no scheduler state."""

from math import cos, pi

from asyncrl.config.sections.trainer import Trainer


def learning_rate(step: int, trainer: Trainer, num_steps: int) -> float:
    """
    Linear from ``lr / warmup_steps`` up to ``lr``, then constant, or half a cosine down to ``lr * min_lr_ratio``.

    ``step`` counts the steps already done; the cosine ends at ``num_steps``, the length of the run.
    """
    if step < trainer.warmup_steps:
        return trainer.lr * (step + 1) / trainer.warmup_steps
    if trainer.lr_schedule == "constant":
        return trainer.lr
    progress = min(1.0, (step - trainer.warmup_steps) / max(num_steps - trainer.warmup_steps, 1))
    floor = trainer.min_lr_ratio
    return trainer.lr * (floor + (1 - floor) * 0.5 * (1 + cos(pi * progress)))
