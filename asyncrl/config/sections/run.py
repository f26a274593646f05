"""Settings of the run and of the model."""

from typing import Any, Literal

from asyncrl.config.sections.section import Count, Natural, Positive, Section, Seed
from asyncrl.errors import ConfigError


class Run(Section, frozen=True, kw_only=True):
    """Name, length and seed of the run."""

    name: str = ""
    """Folder below ``dir``. Empty takes the name of the run file, with a number appended if that is taken."""
    dir: str = "runs"
    """Folder of all run directories."""
    share_with_group: bool = False
    """
    Let the group of the run directory read what the run writes: folders have mode 0750 and files 0640, in place of 0700
    and 0600.
    """
    steps: Count = 60
    """Optimizer steps to train, unless ``epochs`` decides."""
    epochs: Positive | None = None
    """
    Passes over the rows to train on, instead of ``steps``: the broker counts the rows, and takes as many whole steps of
    ``schedule.groups_per_step`` groups as fit into them [total_epochs]. Prompts that ``data.filter_overlong_prompts``
    leaves out are among them, so others are taken again in their place; verl counts without them.
    """
    on_hangup: Literal["stop", "continue"] = "stop"
    """
    When the terminal of `asyncrl run` or `asyncrl resume` is closed, or the connection to it is lost (SIGHUP): ``stop``
    ends the run as Ctrl-C does, ``continue`` lets it go on, for `asyncrl attach` and `asyncrl stop`.
    """
    skip_steps: list[Natural] = []
    """
    Steps, counted from 0, that train on nothing: the groups of their batch are left out and accounted for. For a batch
    at which the trainer fails; `asyncrl resume RUN --skip-step N` adds one.
    """
    seed: Seed = 0
    """Seed of the data order, of sampling and of the trainer's random state."""

    def check(self) -> None:
        """Raise `ConfigError` for the first contradiction between settings of the section."""
        for step in self.skip_steps:
            if self.epochs is None and step >= self.steps:
                raise ConfigError(
                    f"run.skip_steps has {step}, but the run has the steps 0 to {self.steps - 1}; remove it"
                )


class Model(Section, frozen=True, kw_only=True):
    """The policy."""

    path: str
    """
    Hugging Face model directory: config, safetensors, tokenizer. ``org/name`` or ``hf://org/name@revision`` is a model
    of the Hub, from this machine's cache or the network; the run's own configuration then has its folder and commit.
    """
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights."""
    overrides: dict[str, Any] = {}
    """
    Values in place of those in the config.json of ``path``, such as ``max_position_embeddings = 32768``; tables, such
    as ``rope_scaling``, are merged. Trainer and rollouts use them, and checkpoints have them [override_config].
    """
