"""
`asyncrl export`: writes the model of a checkpoint as a directory that transformers and vLLM load, or its adapter as
one that PEFT loads.
"""

from pathlib import Path
from typing import Literal

from asyncrl.config.model.weights import read_config
from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.runtime.model_files import snapshot_name
from asyncrl.runtime.process import configure_logging
from asyncrl.tools.report.model_card import model_card
from asyncrl.trainer.checkpoints.export import Dtype, export_adapter, find_checkpoint, refuse_existing
from asyncrl.trainer.checkpoints.export import export as export_model
from asyncrl.vision.settings import FAMILIES


def export_run(
    path: Path, out: Path, *, step: str | None = None, dtype: Dtype | None = None, is_adapter: bool = False
) -> str:
    """
    Write the model of one checkpoint of a run to ``out``, and return a one-line summary.

    Args:
        step: A number of optimizer steps, or ``best``; None takes the newest intact checkpoint.
        dtype: Dtype that weights are cast to; None keeps the trained one.
        is_adapter: Write the adapter alone, for PEFT.

    Raises `ConfigError` if run, checkpoint or adapter do not exist or ``out`` does, `LedgerError` if the checkpoint is
    damaged, and `RunFailed` if the disk refuses a write.
    """
    configure_logging("export")
    refuse_existing(out)  # before gigabytes are read
    record, name = read_run(path), out.resolve().name
    lora = _lora(record, path) if is_adapter else Lora()
    base, revision = _base(record) if is_adapter else ("", None)
    folder, manifest = find_checkpoint(RunDirectory(path).checkpoints, _step(step))
    card = model_card(
        record,
        name,
        step=manifest.step,
        policy_version=manifest.policy_version,
        dtype=dtype,
        reads_pictures=read_config(folder).get("model_type") in FAMILIES,
        adapter_of=base,
    )
    if is_adapter:
        export_adapter(folder, manifest, out, lora=lora, base=base, revision=revision, card=card, dtype=dtype)
    else:
        export_model(folder, manifest, out, card=card, dtype=dtype)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return f"{out}: step {manifest.step} of {record.name}, {size / 1e6:,.1f} MB"


def _lora(record: RunRecord, path: Path) -> Lora:
    """Adapters of the run; raises `ConfigError` if it had none."""
    config = record.config
    if "model.path" not in config:
        raise ConfigError(
            f"{path} has no readable config.toml, which has the scale of the adapter and its base model; export on the "
            f"broker's machine, or copy the file from there"
        )
    plain = Lora()
    rank = config.get("trainer.lora.rank", plain.rank)
    if not rank:
        raise ConfigError(f"{path} trained the model itself (trainer.lora.rank = 0); export it without --adapter")
    return Lora(rank=rank, alpha=config.get("trainer.lora.alpha", plain.alpha))


def _base(record: RunRecord) -> tuple[str, str | None]:
    """Name and commit of the base model on the Hugging Face Hub, or its path."""
    path: str = record.config["model.path"]
    name = snapshot_name(path)
    return (name.repo, name.revision) if name else (path, None)


def _step(text: str | None) -> int | Literal["best"] | None:
    if text is None:
        return None
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise ConfigError(f"--step {text!r}: expected a number of optimizer steps, or 'best'")
    return int(text)
