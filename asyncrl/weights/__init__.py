"""Tensors in transit: from the trainer's process group to the rollouts'."""
