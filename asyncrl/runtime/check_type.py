"""
Check by a ``model_type`` alone, in a process with torch, that the trainer can compute a model that is not here.

    "qwen3_moe" ─▶ transformers' defaults of the type ─▶ config.json ─▶ what a dry run checks of it

A published model differs from the defaults of its type in its sizes and positions, and some in scaled logits or in
rotary embeddings. A dry run with the model itself checks those.
"""

import json
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.model.weights import CONFIG
from asyncrl.errors import ConfigError
from asyncrl.runtime.check_architecture import CHECK_S, check_computation
from asyncrl.runtime.check_process import answer, check_apart


def check_type(config: Config, kind: str, critic_kind: str = "") -> str:
    """
    Say why nothing is known about models of type ``kind``; empty if the trainer can compute the type's defaults.

    ``critic_kind`` is the type of ``critic.path``, if that is set. Takes seconds, and needs torch. Raises `ConfigError`
    if the trainer cannot compute the type.
    """
    too_slow = f"reading transformers' defaults of model_type {kind!r} took longer than {CHECK_S:g} s"
    return check_apart(__name__, config, kind, critic_kind, limit_s=CHECK_S, too_slow=too_slow).decode()


def unknown_of(config: Config, kind: str, critic_kind: str = "") -> str:
    """The reason of `check_type`, found in this process."""
    from asyncrl.weights.contents.architecture import NotMade

    with tempfile.TemporaryDirectory(prefix="asyncrl-") as name:
        kinds = {Path(name, "model"): kind, Path(name, "critic"): critic_kind if config.critic.path else ""}
        for folder, one in kinds.items():
            if one and (error := _write_defaults(folder, one)):
                return f"transformers has no defaults of model_type {one!r} ({error})"
        model, critic = map(str, kinds)
        critic_path = critic if config.critic.path and critic_kind else ""
        stand_in = replace(
            config,
            model=replace(config.model, path=model),
            critic=replace(config.critic, path=critic_path),
        )
        try:
            check_computation(stand_in, None)
        except NotMade:
            return f"transformers makes no model by its defaults of model_type {kind!r}"
        except ConfigError as error:
            said = str(error).replace(f"model.path={model}", f"a model of type {kind!r}")
            raise ConfigError(said.replace(f"critic.path={critic}", f"a critic of type {critic_kind!r}")) from None
    return ""


def _write_defaults(folder: Path, kind: str) -> str:
    """Write the config.json of a type, with its name alone if transformers has no such type; or return an error."""
    from transformers import CONFIG_MAPPING

    folder.mkdir()
    if kind not in CONFIG_MAPPING:
        (folder / CONFIG).write_text(json.dumps({"model_type": kind}))
        return ""
    try:
        CONFIG_MAPPING[kind]().save_pretrained(folder)
    except Exception as error:  # noqa: BLE001  a type whose parts must be given raises anything
        return type(error).__name__
    return ""


if __name__ == "__main__":
    sys.exit(answer(lambda config: unknown_of(config, *sys.argv[1:]).encode()))
