"""Pictures that a vision tower has encoded, as an argument of transformers' models."""

from importlib.metadata import version
from inspect import signature

from asyncrl.errors import ConfigError

ENCODED = "mm_encoder_outputs"
"""Argument of a model's forward pass, since transformers 5.18. Before, models accept it and ignore it."""


def takes_encoded(model: type) -> bool:
    """True if a class of transformers takes pictures that are encoded."""
    return ENCODED in signature(model.forward).parameters  # type: ignore[attr-defined]  # all have it


def require_encoded(model: type, source: str) -> None:
    """Raise `ConfigError` if the class of a model, named by ``source``, takes no pictures that are encoded."""
    if not takes_encoded(model):
        raise ConfigError(
            f"{source} reads pictures, which {model.__name__} of transformers {version('transformers')} does not take "
            f"encoded ({ENCODED!r}); install transformers 5.18 or newer, or use a model of text alone"
        )
