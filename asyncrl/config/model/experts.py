"""Number of experts of a model directory, by its config.json alone."""

from pathlib import Path

from asyncrl.config.model.weights import read_config

KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names for it in the families of models."""


def num_experts(model: Path) -> int:
    """Experts of a layer; 0 of a dense model. Raises `ConfigError` if config.json cannot be read."""
    config = read_config(model)
    text = config.get("text_config")
    for part in (text if isinstance(text, dict) else config, config):
        for key in KEYS:
            if isinstance(number := part.get(key), int) and number > 1:
                return number
    return 0
