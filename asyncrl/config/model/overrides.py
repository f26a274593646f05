"""
``model.overrides``: values in place of those in a model's config.json.

    config.json                          overrides                         merged
    max_position_embeddings = 4096       max_position_embeddings = 32768   max_position_embeddings = 32768
    rope_theta = 1e6                     rope_scaling.type = "yarn"        rope_parameters = {rope_theta = 1e6,
                                         rope_scaling.factor = 8.0             rope_type = "yarn", factor = 8.0}

Tables are merged, and other values are replaced. config.json has rotary embeddings in one of three forms:
``rope_theta`` beside ``rope_scaling`` with ``type`` or with ``rope_type``, or ``rope_parameters`` with all values. An
override in one form applies to a config in any form.
"""

from collections.abc import Mapping
from typing import Any

from asyncrl.errors import ConfigError

PARAMETERS = "rope_parameters"
ROPE = (PARAMETERS, "rope_scaling", "rope_theta")
"""Keys of rotary embeddings."""
ELSEWHERE = {
    "dtype": "model.dtype",
    "torch_dtype": "model.dtype",
    "model_type": "model.path",
    "architectures": "model.path",
}
"""Keys of config.json that another setting decides."""


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key that another setting decides."""
    for key, setting in ELSEWHERE.items():
        if key in overrides:
            raise ConfigError(f"model.overrides.{key}: set {setting} instead")


def merged(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of config.json with the overrides applied, as a new dict with no table of either argument."""
    if any(key in overrides for key in ROPE):
        config, overrides = _with_parameters(config), _with_parameters(overrides)
    found = {key: _copied(value) for key, value in config.items()}
    for key, value in overrides.items():
        if not (isinstance(value, Mapping) and isinstance(found.get(key), Mapping)):
            found[key] = _copied(value)
        elif key == PARAMETERS:
            found[key] |= _copied(value)
        else:
            found[key] = merged(found[key], value)
    return found


def _with_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of ``config`` with all keys of rotary embeddings, if there are any, in ``rope_parameters``."""
    found = {key: value for key, value in config.items() if key not in ROPE}
    parameters = dict(config.get("rope_scaling") or {}) | dict(config.get(PARAMETERS) or {})
    if "type" in parameters:
        parameters["rope_type"] = parameters.pop("type")
    if (theta := config.get("rope_theta")) is not None:
        parameters.setdefault("rope_theta", theta)
    return found | ({PARAMETERS: parameters} if parameters else {})


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value
