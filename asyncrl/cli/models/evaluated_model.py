"""The model that `asyncrl eval` is given: a model directory, a checkpoint in a run directory, or a run directory."""

from pathlib import Path

from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_overview import is_run
from asyncrl.trainer.checkpoints.export import find_checkpoint


def model_and_run_file(model: str) -> tuple[str, Path | None]:
    """
    The model, of a run directory its newest checkpoint; and the run file of its run, None if it is in no run directory.

    Raises `ConfigError` if a run directory has no intact checkpoint.
    """
    path = Path(model)
    if is_run(path):
        directory = RunDirectory(path)
        return str(find_checkpoint(directory.checkpoints, None)[0]), directory.config
    folder = path.resolve().parent
    directory = RunDirectory(folder.parent)
    in_run = folder == directory.checkpoints and is_run(directory.path)
    return model, directory.config if in_run else None
