"""The control plane imports without torch, and no module can execute received data."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl

PACKAGE = Path(asyncrl.__file__).parent
WITHOUT_TORCH = [
    "errors",
    "messages",
    "config",
    "wire",
    "workers",
    "files",
    "terminal",
    "broker",
    "spool",
    "reward",
    "records",
    "data",
    "environment",
    "tools/plan",
    "tools/verl",
    "tools/report",
    "tools/dashboard",
    "cli/main",
    "cli/node",
]
"""Packages and modules that must import without torch."""
EMBEDDABLE = ["asyncrl.rollout.actor", "asyncrl.engine"]
"""Modules that a serving process embeds beside its own engine; they must import without torch too."""
HEAVY = ["torch", "transformers", "safetensors", "vllm"]

SERIALIZERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "marshal", "dill", "shelve", "joblib"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def modules(part: str) -> Iterator[str]:
    """The dotted name of a module, or those of all modules of a package."""
    place = PACKAGE / part
    assert place.is_dir() or place.with_suffix(".py").is_file(), part
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        name = ".".join(("asyncrl", *path.relative_to(PACKAGE).with_suffix("").parts))
        yield name.removesuffix(".__init__")


def loaded_after_importing(names: list[str]) -> set[str]:
    """Top-level packages in ``sys.modules`` of a fresh interpreter after it imported ``names``."""
    program = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_the_control_plane_loads_without_torch() -> None:
    names = [name for part in WITHOUT_TORCH for name in modules(part)] + EMBEDDABLE
    assert len(names) > 40
    assert loaded_after_importing(names).isdisjoint(HEAVY)


def test_importing_asyncrl_loads_no_dependency() -> None:
    assert loaded_after_importing(["asyncrl"]).isdisjoint([*HEAVY, "zmq", "msgspec", "pyarrow", "click", "numpy"])


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module


def forbidden_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" as name)):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                yield "torch.load"
            case ast.keyword(arg="trust_remote_code", value=ast.Constant(value=True)):
                yield "trust_remote_code=True"


def test_no_module_can_execute_received_data() -> None:
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    serializers = {
        path: SERIALIZERS & {name.partition(".")[0] for name in imports(tree)} for path, tree in trees.items()
    }
    calls = {path: list(forbidden_calls(tree)) for path, tree in trees.items()}
    assert [{path: found for path, found in every.items() if found} for every in (serializers, calls)] == [{}, {}]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("eval(text)", ["eval"]),
        ("exec(text)", ["exec"]),
        ("torch.load(path)", ["torch.load"]),
        ("from_pretrained(path, trust_remote_code=True)", ["trust_remote_code=True"]),
        ("model.eval(); from_pretrained(path, trust_remote_code=False)", []),
    ],
)
def test_forbidden_calls_are_found(source: str, found: list[str]) -> None:
    assert list(forbidden_calls(ast.parse(source))) == found
