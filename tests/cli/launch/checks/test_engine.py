"""An engine that is configured is installed, and knows its arguments: found without importing it."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.launch.checks import engine
from asyncrl.cli.launch.checks.engine import argument_names, check_engine
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.vllm.arguments import FIXED

NEEDED = (
    "model", "dtype", "max_num_seqs", "tensor_parallel_size", "gpu_memory_utilization", "enforce_eager",
    "max_model_len", "enable_chunked_prefill", *FIXED,
)  # fmt: skip


def a_run(**vllm: Any) -> Config:
    rollout = {"engine": "vllm", "vllm": vllm}
    return decode({"model": {"path": "m"}, "data": {"train": "t"}, "rollout": rollout})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM whose engine has the arguments that asyncrl needs, and ``block_size``."""
    (tmp_path / "engine").mkdir()
    fields = "".join(f"    {name}: int = 0\n" for name in (*NEEDED, "block_size"))
    source = (
        f"class EngineArgs:\n{fields}\n\nclass AsyncEngineArgs(EngineArgs):\n    enable_log_requests: bool = False\n"
    )
    (tmp_path / "engine" / "arg_utils.py").write_text(source)
    spec = ModuleSpec("vllm", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(engine, "find_spec", lambda _: spec)
    return tmp_path


def test_the_built_in_engine_comes_with_transformers() -> None:
    assert "transformers" in check_engine(decode({"model": {"path": "m"}, "data": {"train": "t"}}), "cpu")


def test_a_vllm_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^rollout.engine is 'vllm', but vLLM is not installed here; pip install"):
        check_engine(a_run(), "cuda")


def test_arguments_are_compared_with_those_of_the_installed_engine(installed: Path) -> None:
    assert "knows its arguments" in check_engine(a_run(engine_args={"block_size": 32}), "cuda")
    assert argument_names(installed) >= {"block_size", "enable_log_requests"}
    with pytest.raises(ConfigError, match=r"engine_args\.blocksize: .* no such argument; did you mean 'block_size'\?"):
        check_engine(a_run(engine_args={"blocksize": 32}), "cuda")
    with pytest.raises(ConfigError, match="on a CPU vLLM dies when it prefills"):
        check_engine(a_run(enable_chunked_prefill=True), "cpu")


def test_a_vllm_that_has_moved_its_arguments_is_not_judged(installed: Path) -> None:
    (installed / "engine" / "arg_utils.py").write_text("class (")
    assert "were not checked" in check_engine(a_run(engine_args={"blocksize": 32}), "cuda")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_arguments_of_the_real_vllm_are_found() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec
    assert spec.origin
    assert argument_names(Path(spec.origin).parent) >= set(NEEDED)
