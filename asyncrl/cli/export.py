"""`asyncrl export`: writes the model of a checkpoint as a directory that transformers and vLLM load."""

from pathlib import Path
from typing import Literal

from asyncrl.config.model.weights import read_config
from asyncrl.errors import ConfigError
from asyncrl.node.process import configure_logging
from asyncrl.observe.report.model_card import model_card
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_record import read_run
from asyncrl.trainer.checkpoints.export import Dtype, export, find_checkpoint
from asyncrl.vision.settings import FAMILIES


def export_run(path: Path, out: Path, *, step: str | None = None, dtype: Dtype | None = None) -> str:
    """
    Write the model of one checkpoint of a run to ``out``, and return a one-line summary.

    ``step`` is a number of optimizer steps, or ``best``; None takes the newest intact checkpoint. ``dtype`` casts the
    weights; None keeps the trained one.

    Raises `ConfigError` if run or checkpoint do not exist or ``out`` does, `LedgerError` if the checkpoint is damaged,
    and `RunFailed` if the disk refuses a write.
    """
    configure_logging("export")
    if out.exists():  # Refused before gigabytes are read.
        raise ConfigError(f"{out} exists and is never overwritten; give a directory that does not exist")
    record, name = read_run(path), out.resolve().name
    folder, manifest = find_checkpoint(RunDirectory(path).checkpoints, _step(step))
    card = model_card(
        record,
        name,
        step=manifest.step,
        policy_version=manifest.policy_version,
        dtype=dtype,
        reads_pictures=read_config(folder).get("model_type") in FAMILIES,
    )
    export(folder, manifest, out, card=card, dtype=dtype)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return f"{out}: step {manifest.step} of {record.name}, {size / 1e6:,.1f} MB"


def _step(text: str | None) -> int | Literal["best"] | None:
    if text is None:
        return None
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise ConfigError(f"--step {text!r}: expected a number of optimizer steps, or 'best'")
    return int(text)
