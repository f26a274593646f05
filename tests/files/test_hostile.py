"""No file of others takes more than 10 s and 1 GB, or ends a process in another way than one sentence and code 78."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.config.model.adapter import base_of
from asyncrl.config.model.directory import check_model
from asyncrl.config.run_file import load_config
from tests.files.hostile import JSON, LIMIT_BYTES, MODELS, OUTSIDE, TOML, Make, outcome

READERS: dict[str, tuple[dict[str, Make], str, Callable[[Path], object]]] = {
    "run file": (TOML, "run.toml", load_config),
    "model": (MODELS, "model", lambda path: check_model(str(path))),
    "adapter": (JSON | OUTSIDE, "adapter_config.json", lambda path: base_of(path.parent)),
}


@pytest.mark.parametrize(
    ("reader", "case"), [(reader, case) for reader, (cases, _, _) in READERS.items() for case in cases]
)
def test_a_hostile_file_is_one_sentence(
    reader: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    cases, name, read = READERS[reader]
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    cases[case](Path(name))
    found = outcome(lambda: read(tmp_path / name))
    assert found.is_refusal(), found
    assert found.sentence.isprintable() or "mistakes:" in found.sentence
    assert len(found.sentence) < 6000
    assert found.peak_mb << 20 < LIMIT_BYTES
