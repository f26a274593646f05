"""The names that a host imports from asyncrl."""

import ast
import inspect
from pathlib import Path

import pytest

import asyncrl
from asyncrl.version import VERSION

TYPED = Path(asyncrl.__file__).with_name("py.typed")
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", asyncrl.__all__)
def test_every_public_name_is_callable(name: str) -> None:
    assert callable(getattr(asyncrl, name))
    assert name in dir(asyncrl)


def test_type_checkers_see_the_public_names() -> None:
    source = Path(asyncrl.__file__).read_text(encoding="utf-8")
    declared = {line.rsplit(" as ", 1)[1].split()[0] for line in source.splitlines() if line.startswith("    from ")}
    assert declared == set(asyncrl.__all__)
    assert TYPED.is_file()


def test_the_version_is_public() -> None:
    assert asyncrl.__version__ == VERSION


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'asyncrl' has no attribute 'rnu'"):
        _ = asyncrl.rnu


def test_the_call_in_the_readme_reads_a_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippet = README.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    calls = [node for node in ast.walk(compile(snippet, README, "exec", flags)) if isinstance(node, ast.Call)]
    (called,) = [call for call in calls if ast.unparse(call.func) == "asyncrl.run"]
    path, *overrides = [ast.literal_eval(argument) for argument in called.args]
    monkeypatch.chdir(tmp_path)
    Path(path).write_text('model.path = "m"\ndata.train = "t"\n')

    inspect.signature(asyncrl.run).bind(
        path, *overrides, **{given.arg: print for given in called.keywords if given.arg}
    )
    config = asyncrl.load_config(path, overrides)
    assert config == asyncrl.load_config(Path(path), overrides)
    assert (config.model.path, config.run.steps) == ("m", 20)
