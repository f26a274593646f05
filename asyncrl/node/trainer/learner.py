"""Loads the learner of a trainer rank from the newest readable checkpoint, or from the base model."""

from collections.abc import Callable
from pathlib import Path

import structlog
import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from asyncrl.config.sections import Config
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.trainer.actor import Start
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.checkpoint import Tokenizer
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.weights.groups.device import require

log = structlog.get_logger()


def load_learner(
    config: Config, directory: RunDirectory, form: Callable[[], Ranks]
) -> tuple[Learner, Tokenizer, Start]:
    """
    Load the learner, its tokenizer, and the progress to resume from. Collective: every rank calls it with ``form``,
    which forms the group of all ranks.

    Raises:
        ConfigError: The model does not exist, or cannot be trained as configured or on this machine.
        RankDied: Another rank is gone.
    """
    torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    disable_progress_bar()  # a log is not a terminal
    require(config.trainer.device)
    base = Path(config.model.path)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    ranks = form()
    if (folder := _newest_checkpoint(directory.checkpoints, ranks)) is None:
        return Learner(config, base, ranks=ranks), tokenizer, Start()
    manifest = checkpoint.read_manifest(folder)
    log.info("trainer.resumed", checkpoint=str(folder), step=manifest.step, policy_version=manifest.policy_version)
    # In a LoRA checkpoint's model, the adapters are merged; resuming needs the base model and separate adapters.
    learner = Learner(config, base if config.trainer.lora.rank else folder, reference_path=base, ranks=ranks)
    learner.resume(manifest.step, checkpoint.read_all_tensors(folder, manifest), manifest.state)
    checkpoint.restore_random_state(manifest)
    return learner, tokenizer, Start(manifest.step, manifest.policy_version, str(folder), manifest.stepped)


def _newest_checkpoint(checkpoints: Path, ranks: Ranks) -> Path | None:
    """The newest undamaged checkpoint, which rank 0 finds by reading every byte and tells the other ranks."""
    found = checkpoint.newest_intact(checkpoints) if ranks.rank == 0 else None
    name = ranks.all_gather(found[0].name.encode() if found else b"")[0].decode()
    return checkpoints / name if name else None
