"""The function that ``FILE`` or ``FILE:NAME`` means on a command line."""

import ast
from collections.abc import Sequence
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.plug_in import is_path


def full_name(given: str, usual: Sequence[str]) -> str:
    """
    The name as a run file has it: ``file.py:name``, ``module:name`` or a built-in name.

    ``file.py`` alone is its only public function, or the first of the ``usual`` names that it has. It is not run.

    Raises:
        ConfigError: The file does not exist, is no Python, or has no function or several to choose from.
    """
    if is_path(given) or not given.endswith(".py"):
        return given
    found = _public_functions(Path(given))
    chosen = next((name for name in usual if name in found), found[0] if len(found) == 1 else "")
    if not chosen:
        several = f"several functions, {', '.join(found)}" if found else "no public function at its top level"
        raise ConfigError(f"{given} has {several}: name the one to try, as {given}:{found[0] if found else 'NAME'}")
    return f"{given}:{chosen}"


def _public_functions(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except SyntaxError as error:
        raise ConfigError(f"{path} is no Python: {error}") from error
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function.name for function in functions if not function.name.startswith("_")]
