"""Loads the learner of a trainer rank from the newest readable checkpoint, or from the base model."""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.log import get_logger
from asyncrl.trainer.actor import Start
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints.parts import TENSORS
from asyncrl.trainer.checkpoints.prompt_files import PromptFiles
from asyncrl.trainer.checkpoints.sharing import newest_of_all
from asyncrl.trainer.checkpoints.stored import open_tensors
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.weights.groups.device import make_current, require

log = get_logger()


def load_learner(
    config: Config, checkpoints: Path, form: Callable[[], Ranks], run_id: str = "", *, is_reader: bool = True
) -> tuple[Learner, PromptFiles, Start]:
    """
    Load the learner, the files of its tokenizer, and the progress to resume from. Collective: every rank calls it with
    ``form``, which forms the group of all ranks.

    Args:
        checkpoints: Folder of this machine's checkpoints.
        is_reader: True for one rank of each machine, which finds and copies checkpoints.

    Raises:
        ConfigError: The model does not exist, or cannot be trained as configured or on this machine.
        LedgerError: The newest checkpoint belongs to another run than ``run_id``.
        RankDied: Another rank is gone.
    """
    torch.set_num_threads(config.trainer.threads)
    torch.manual_seed(config.run.seed)
    disable_progress_bar()  # a log is not a terminal
    require(config.trainer.device)
    base = Path(config.model.path)
    check_model(config.model.path)
    tokenizer = PromptFiles(base)
    ranks = form()
    make_current(ranks.device)
    keep = 0 if config.checkpoint.keep_best else config.checkpoint.keep  # copies must not push out the best
    folder, damaged = newest_of_all(checkpoints, ranks, is_reader=is_reader, keep=keep)
    if folder is None:
        return Learner(config, base, ranks=ranks), tokenizer, Start(damaged=damaged)
    manifest = checkpoint.read_manifest(folder)
    checkpoint.require_run(folder, manifest, run_id)
    log.info("trainer.resumed", checkpoint=str(folder), step=manifest.step, policy_version=manifest.policy_version)
    # In a LoRA checkpoint's model, the adapters are merged; resuming needs the base model and separate adapters.
    learner = Learner(config, base if config.trainer.lora.rank else folder, reference_path=base, ranks=ranks)
    with open_tensors(folder / TENSORS, manifest.files) as tensors:
        learner.resume(manifest.step, tensors, manifest.state)
    checkpoint.restore_random_state(manifest)
    return learner, tokenizer, Start(manifest.step, manifest.policy_version, str(folder), manifest.stepped, damaged)
