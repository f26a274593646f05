"""Check that the rollout engine is installed and knows its arguments, without importing it."""

import ast
from importlib.util import find_spec
from pathlib import Path

from asyncrl.config.config import Config
from asyncrl.errors import ConfigError
from asyncrl.node.machine.machine import ENGINES
from asyncrl.rollout.engines.vllm.arguments import NOT_INSTALLED, engine_args
from asyncrl.weights.groups.device import installed_version

ARGUMENTS = Path("engine") / "arg_utils.py"
CLASSES = {"EngineArgs", "AsyncEngineArgs"}
"""Dataclasses in `ARGUMENTS` whose fields are the arguments of vLLM's engine."""


def check_engine(config: Config, kind: str) -> str:
    """
    Describe the engine and its version.

    Args:
        kind: Kind of the rollouts' devices.

    Raises:
        ConfigError: vLLM is configured but not installed, or the installed version does not know an argument.
    """
    if config.rollout.engine == "transformers":
        return f"transformers {installed_version('transformers') or '(not installed here)'}"
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ConfigError(NOT_INSTALLED)
    if names := argument_names(Path(spec.origin).parent):
        engine_args(config, names, is_cpu=kind == "cpu")
    found = ", ".join(f"{name} {version}" for name in ENGINES if (version := installed_version(name)))
    return f"{found or 'vllm'}, {'which knows its arguments' if names else 'whose arguments were not checked'}"


def argument_names(vllm: Path) -> set[str]:
    """Argument names of an installed vLLM, parsed from its source; empty if this version has them elsewhere."""
    try:
        body = ast.parse((vllm / ARGUMENTS).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, UnicodeDecodeError):
        return set()
    classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name in CLASSES]
    fields = [field for node in classes for field in node.body if isinstance(field, ast.AnnAssign)]
    return {field.target.id for field in fields if isinstance(field.target, ast.Name)}
