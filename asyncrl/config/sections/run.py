"""Settings of the run and of the model."""

import operator
import re
from collections.abc import Callable, Mapping
from math import isnan
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from asyncrl.config.sections.section import Count, Positive, Section, Seed
from asyncrl.errors import ConfigError
from asyncrl.foreign_text import acting, shown


class Goal(NamedTuple):
    """A metric of evaluations, and the value that it should reach: ``run.stop_when``, read."""

    metric: str
    """Name: ``accuracy``, or another that `asyncrl.records.evaluation_metrics` gives."""
    sign: str
    bound: float

    def is_met(self, metrics: Mapping[str, float]) -> bool:
        """True for the metrics of an evaluation that have the value; an evaluation may lack one, or have NaN."""
        value = metrics.get(self.metric, float("nan"))
        return not isnan(value) and SIGNS[self.sign](value, self.bound)


SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
GOAL = re.compile(r"\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>[-+.\de]+)\s*(?P<percent>%?)\s*")


def goal_of(text: str) -> Goal:
    """The goal that a text such as ``accuracy >= .95`` or ``pass@4 > 60%`` names; raises `ConfigError`."""
    found = GOAL.fullmatch(text)
    try:
        number = float(found["number"]) if found else None
    except ValueError:
        number = None
    if found is None or number is None:
        raise ConfigError(
            f"run.stop_when is {text!r}: expected a metric of evaluations, one of {', '.join(SIGNS)}, and a number, "
            f"such as 'accuracy >= .95'"
        )
    return Goal(found["metric"], found["sign"], number / 100 if found["percent"] else number)


def require_folder_name(name: str) -> None:
    """Raise `ConfigError` unless ``name`` is that of a single folder, which a terminal shows as it is."""
    if name in ("", "..") or PurePath(name).name != name or acting(name):
        raise ConfigError(f"run.name is {shown(name)!r}: expected the name of a single folder, without '/'")


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
    stop_when: str = ""
    """
    End the run before its last step, with status ``finished``, once an evaluation has such a value: a metric as in
    ``checkpoint.best_metric``, ``>=``, ``>``, ``<=`` or ``<``, and a number, such as ``"accuracy >= .95"``. The steps
    whose batches are formed by then are trained, up to the end of a version, which is evaluated. Empty: never.
    """
    on_hangup: Literal["stop", "continue"] = "stop"
    """
    When the terminal of `asyncrl run` or `asyncrl resume` is closed, or the connection to it is lost (SIGHUP): ``stop``
    ends the run as Ctrl-C does, ``continue`` lets it go on, for `asyncrl attach` and `asyncrl stop`.
    """
    skip_steps: list[Count] = []
    """
    Steps, counted from 1, that train on nothing: the groups of their batch are left out and accounted for. For a batch
    at which the trainer fails; `asyncrl resume RUN --skip-step N` adds one.
    """
    unresolved: list[str] = []
    """
    Options of a launch script of verl that asyncrl does not honour, as `asyncrl import-verl` writes them. A run starts
    once the list is empty: what to do instead is decided by hand.
    """
    seed: Seed = 0
    """Seed of the data order, of sampling and of the trainer's random state."""

    def check(self) -> None:
        """Raise `ConfigError` for the first contradiction between settings of the section."""
        for step in self.skip_steps:
            if self.epochs is None and step > self.steps:
                raise ConfigError(f"run.skip_steps has {step}, but the run has the steps 1 to {self.steps}; remove it")
        if self.unresolved:
            raise ConfigError(
                f"run.unresolved: the launch script asks for what asyncrl does not do: {self.unresolved[0]}; decide "
                f"what to do instead, then remove the line"
            )
        if self.stop_when:
            goal_of(self.stop_when)
        if self.name:
            require_folder_name(self.name)


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
