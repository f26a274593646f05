"""
LoRA adapters as directories of the PEFT library: read by small files and headers, and described for it.

    adapter_config.json            r, lora_alpha, target_modules, and the model that it is for
    adapter_model.safetensors      A [r, I] as base_model.model.LAYER.lora_A.weight, and B [O, r] as ...lora_B.weight

The adapted layer has the weight W + lora_alpha / r · B A.

Source:
    PEFT 0.21, LoraConfig in peft/tuners/lora/config.py.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.config.model.weights import REMEDY, Shapes, read_shapes
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.files.foreign import NoSuchFile, read_json, within
from asyncrl.foreign_text import shown

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""Parts of the names of tensors, before and after the name of the layer."""
NEUTRAL: Mapping[str, Any] = {"bias": "none", "megatron_core": "megatron.core", "qalora_group_size": 16}
"""Values that leave an adapter as it is; those of other keys are null, false and empty ones."""
IRRELEVANT = {
    *("peft_version", "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout", "eva_config"),
}
"""Keys that change nothing about given tensors, whose names say of which layers they are."""
MAX_SHOWN = 200
"""Most characters of a value in a message."""
READ = {"peft_type", "r", "lora_alpha", "init_lora_weights"}
ON_ADAPTERS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of ``init_lora_weights`` that set adapters alone. The others changed the weights of the model as well."""


def check_adapter(lora: Lora) -> Shapes:
    """
    Shapes of the tensors in the adapter directory ``lora.path``, by their names. Reads no tensor.

    Raises:
        ConfigError: It is incomplete, not plain LoRA, or of another rank or alpha than ``lora`` has.
    """
    path, source = Path(lora.path), f"trainer.lora.path={lora.path}"
    config = _read_config(path, source)
    _require_plain_lora(config, source)
    numbers = (config.get("r"), config.get("lora_alpha"))
    if numbers != (lora.rank, lora.effective_alpha):
        got = list(map(_told, numbers))
        raise ConfigError(
            f"{source} has r = {got[0]} and lora_alpha = {got[1]}, but trainer.lora has rank {lora.rank} and alpha "
            f"{lora.effective_alpha:g}; set trainer.lora.rank = {got[0]} and trainer.lora.alpha = {got[1]}"
        )
    if not (path / WEIGHTS).exists():
        if (path / PICKLED).is_file():
            raise ConfigError(
                f"{source} has {PICKLED}, a pickle, which is never read; load it with PEFT and save it again, as "
                f"{WEIGHTS}"
            )
        raise ConfigError(f"{source} has no {WEIGHTS}; {REMEDY}")
    return read_shapes(within(path, WEIGHTS))


def layers_of(tensors: Iterable[str]) -> list[str]:
    """Names of the layers that have an adapter among ``tensors``, in their order, each once."""
    names = (name.removeprefix(PREFIX).removesuffix(DOWN).removesuffix(UP) for name in tensors)
    return list(dict.fromkeys(names))


def last_name(layer: str) -> str:
    """``q_proj`` of ``model.layers.0.self_attn.q_proj``."""
    return layer.rpartition(".")[2]


def target_modules(layers: Collection[str], weights: Iterable[str]) -> list[str]:
    """
    Names by which PEFT finds these layers and no others of the model with these weights.

    Last names, such as ``q_proj``, if all layers of these names have an adapter, and else full ones.
    """
    adapted = Counter(map(last_name, layers))
    every = Counter(last_name(name.removesuffix(".weight")) for name in weights if name.endswith(".weight"))
    has_all = all(every[name] == count for name, count in adapted.items())
    return sorted(adapted) if has_all else list(layers)


def adapter_config(lora: Lora, targets: Collection[str], base: str, revision: str | None = None) -> dict[str, Any]:
    """
    Contents of ``adapter_config.json``.

    Args:
        targets: `target_modules`.
        base: Name on the Hugging Face Hub, or path, of the model that the adapter is for.
        revision: Commit of ``base`` on the Hub; None if it is not known.
    """
    alpha = lora.effective_alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,  # some readers expect an integer
        "target_modules": list(targets),
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        "use_rslora": False,
    }


def base_of(path: Path) -> str:
    """Name or path of the model that the adapter in this directory was trained on; empty if it does not say."""
    return str(_read_config(path, str(path)).get("base_model_name_or_path") or "")


def _read_config(path: Path, source: str) -> dict[str, Any]:
    try:
        return read_json(within(path, CONFIG), dict[str, Any], remedy="copy the adapter directory again")
    except NoSuchFile as error:
        raise ConfigError(
            f"{source} is not an adapter directory (no {CONFIG} in it): give one that save_pretrained of PEFT or "
            f"asyncrl export --adapter has written"
        ) from error


def _told(value: Any) -> str:
    return shown(repr(value), MAX_SHOWN)


def _require_plain_lora(config: Mapping[str, Any], source: str) -> None:
    merge = "merge the adapter into the model with PEFT (merge_and_unload), and give the result as model.path"
    if (kind := config.get("peft_type")) != "LORA":
        raise ConfigError(f"{source}: peft_type is {_told(kind)}, expected 'LORA'; {merge}")
    if (init := config.get("init_lora_weights")) not in ON_ADAPTERS:
        raise ConfigError(
            f"{source}: init_lora_weights is {_told(init)}, which changed weights of the model too; {merge}"
        )
    for key in sorted(config.keys() - IRRELEVANT - READ):
        value = config[key]
        if value and value != NEUTRAL.get(key):
            raise ConfigError(f"{source}: {shown(key)} is {_told(value)}, but only plain LoRA is trained; {merge}")
