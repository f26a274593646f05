"""Write the adapters of a policy as a directory of the PEFT library, without that library."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from safetensors.torch import save_file

from asyncrl.config.model.adapter import CONFIG, WEIGHTS, adapter_config
from asyncrl.config.sections.trainer import Lora
from asyncrl.trainer.checkpoints.snapshot import host_copy


def save_adapter(path: Path, policy: Any, lora: Lora) -> Lora:
    """The settings that start from it."""
    path.mkdir()
    save_file({name: host_copy(weight) for name, weight in policy.parameters().items()}, path / WEIGHTS)
    (path / CONFIG).write_bytes(msgspec.json.encode(adapter_config(lora, lora.targets, "base")))
    return replace(lora, path=str(path))
