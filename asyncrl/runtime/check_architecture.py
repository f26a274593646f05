"""Check by a model's config, in a process with torch, that trainer and rollouts can compute it in their memory."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.catalogue import estimator_entry
from asyncrl.config.config import Config
from asyncrl.config.engines import imported
from asyncrl.config.model.adapter import WEIGHTS
from asyncrl.config.model.weights import Shapes, check_weights, weight_files
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.plug_in import is_path
from asyncrl.runtime.check_process import answer, check_apart
from asyncrl.runtime.machine import CheckLine

CHECK_S = 300.0
"""Seconds for the whole check, most of which is the import of torch on a busy machine."""
SECTION = "run"
MEMORY = "memory"
"""Name of the line about it."""
NOT_CHECKED = "not checked, because the model cannot be computed"


def check_architecture(config: Config, device_memory: str = "", host_memory: str = "") -> list[CheckLine]:
    """
    Lines of `examine`. Raises `ConfigError` if the trainer or the engine cannot compute the model, or lacks the memory
    for it.
    """
    lines = examine(config, device_memory, host_memory)
    if problem := next((line.problem for line in lines if line.state == "bad"), ""):
        raise ConfigError(problem)
    return lines


def refuse_certain(lines: Sequence[CheckLine], note: Callable[[str], object]) -> None:
    """Raise `ConfigError` for a model that cannot be computed; tell ``note`` of memory, which is only estimated."""
    for line in lines:
        if line.state == "bad" and line.name == MEMORY:
            note(line.problem)
        elif line.state == "bad":
            raise ConfigError(line.problem)


def examine(config: Config, device_memory: str = "", host_memory: str = "") -> list[CheckLine]:
    """
    Lines about the model's weights, its architecture, its positions and the memory. Takes seconds, and needs torch.

    ``device_memory``, such as ``80GB``, replaces the memory of each device here, and ``host_memory`` that of this
    machine; empty keeps it. Raises `ConfigError` if the check itself fails.
    """
    too_slow = f"reading the architecture of model.path={config.model.path} took longer than {CHECK_S:g} s"
    found = check_apart(__name__, config, device_memory, host_memory, limit_s=CHECK_S, too_slow=too_slow)
    return msgspec.json.decode(found, type=list[CheckLine])


def _lines(config: Config, device_memory: str = "", host_memory: str = "") -> Iterator[CheckLine]:
    text_config: list[Any] = []
    yield result_line("weights", lambda: _values(config))
    yield (architecture := result_line("architecture", lambda: _of_directory(config, text_config)))
    if architecture.state == "bad":
        yield from (CheckLine(SECTION, name, "absent", NOT_CHECKED) for name in ("positions", MEMORY))
        return
    yield result_line("positions", lambda: _positions(config, text_config[0]))
    yield result_line(MEMORY, lambda: _memory(config, device_memory, host_memory))


def result_line(name: str, find: Callable[[], str]) -> CheckLine:
    """Line with the description that ``find`` returns, or with the error that it raises."""
    try:
        return CheckLine(SECTION, name, "good", find())
    except AsyncrlError as error:
        return CheckLine(SECTION, name, "bad", "see below", str(error))


def _of_directory(config: Config, text_config: list[Any]) -> str:
    text_config.append(check_computation(config, check_weights(Path(config.model.path), "model.path")))
    if config.trainer.lora.path:
        _check_adapter(config)
    return f"a model of type {text_config[0].model_type!r}, which the trainer can compute"


def check_computation(config: Config, shapes: Shapes | None) -> Any:
    """
    Text config of the model in ``model.path``. Raises `ConfigError` unless the trainer can compute it, and a critic.

    ``shapes`` are those of the weights by name; None if there is a config.json alone. Imports torch.
    """
    from asyncrl.trainer.model import architecture

    model = Path(config.model.path)
    text_config = architecture.check_architecture(model, shapes, "model.path", config.model.overrides)
    architecture.check_lengths(text_config, config.longest_request, f"model.path={model}")
    advantage = config.algorithm.advantage
    if not is_path(advantage) and "values" in estimator_entry(advantage).needs:
        critic = Path(config.critic.path) if config.critic.path else model
        overrides = {} if config.critic.path else config.model.overrides
        read = architecture.read_architecture(critic, "critic.path", overrides)
        architecture.check_critic(read, f"critic.path={critic}")
    return text_config


def _check_adapter(config: Config) -> None:
    from asyncrl.trainer.memory import meta_model
    from asyncrl.trainer.model.architecture import policy_class
    from asyncrl.trainer.model.lora import Adapters

    path, overrides = Path(config.model.path), config.model.overrides
    model = meta_model(path, policy_class(path, overrides), "model.path", overrides)
    Adapters(model, config.trainer.lora).check_path()


def _values(config: Config) -> str:
    from asyncrl.config.model.values import check_values

    adapter = [Path(config.trainer.lora.path) / WEIGHTS] if config.trainer.lora.path else []
    models = dict.fromkeys(filter(None, (config.model.path, config.critic.path)))
    return check_values([*(file for model in models for file in weight_files(Path(model))), *adapter])


def _positions(config: Config, text_config: Any) -> str:
    from asyncrl.weights.contents.architecture import check_positions, num_positions

    entry, longest = config.rollout.entry, config.longest_slot
    if entry.check_architecture:
        imported(entry.check_architecture)(text_config, longest)
    check_positions(text_config, longest)
    known = num_positions(text_config)
    return f"{longest:,} of prompt and completion, of {f'{known:,}' if known else 'any number'} that the model knows"


def _memory(config: Config, device_memory: str, host_memory: str) -> str:
    from asyncrl.runtime.memory import check_memory, room_here

    return check_memory(config, room_here(config, device_memory, host_memory))


if __name__ == "__main__":
    sys.exit(answer(lambda config: msgspec.json.encode(list(_lines(config, *sys.argv[1:])))))
