"""Number of experts of a model directory, by its config.json alone."""

from pathlib import Path

from asyncrl.config.model.weights import read_config

KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json with the number of experts, which depend on the family of the model."""


def num_experts(model: Path) -> int:
    """Number of experts in a layer; 0 for a dense model. Raises `ConfigError` if config.json cannot be read."""
    config = read_config(model)
    text = config.get("text_config")
    for part in (text if isinstance(text, dict) else config, config):
        for key in KEYS:
            if isinstance(number := part.get(key), int) and number > 1:
                return number
    return 0
