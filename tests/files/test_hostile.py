"""No file of others takes more than 10 s and 1 GB, or ends a process in another way than one sentence and code 78."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.config.model.adapter import base_of
from asyncrl.config.model.directory import check_model
from asyncrl.config.run_file import load_config
from asyncrl.config.sections.data import Data
from asyncrl.data.row import to_prompt
from asyncrl.data.table import open_rows
from asyncrl.errors import ConfigError
from asyncrl.foreign_text import acting
from asyncrl.runtime.check_template import try_template
from tests.files.hostile import (
    JSON,
    JSONL,
    LIMIT_BYTES,
    MODELS,
    OUTSIDE,
    PARQUET,
    TOML,
    Make,
    apart,
    holding,
    outcome,
    said,
)


def read_all(path: Path) -> None:
    rows = open_rows(path)
    for row in range(len(rows)):
        to_prompt(rows[row], Data(train=str(path)))


READERS: dict[str, tuple[dict[str, Make], str, Callable[[Path], object]]] = {
    "run file": (TOML, "run.toml", load_config),
    "model": (MODELS, "model", lambda path: check_model(str(path))),
    "jsonl": (JSONL, "rows.jsonl", read_all),
    "parquet": (PARQUET, "rows.parquet", read_all),
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
    apart(cases[case], Path(name))
    found = outcome(lambda: read(tmp_path / name))
    assert found.is_refusal(), found
    assert not acting(found.sentence.replace("\n", ""))
    assert len(found.sentence) < 6000
    assert found.peak_mb << 20 < LIMIT_BYTES


TEMPLATES = {
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}a{% endfor %}{% endfor %}",
    "product": "{{ 'a' * 10**10 }}",
    "long": "{{ 'a' * 10**7 }}",
    "doubled": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "centred": "{{ 'a'|center(10**10) }}",
    "filled": "{{ [1]|batch(10**10, 'x')|list }}",
    "of tools alone": "{% if tools %}{{ 'a' * 10**10 }}{% endif %}",
}


@pytest.mark.slow("each is tried by a process that imports transformers")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_without_an_end_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    with pytest.raises(ConfigError, match="does not end: a chat of three words took more than 3 s, 1 GiB or 1,048,576"):
        try_template(tmp_path, {})


@pytest.mark.slow("as above")
@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ raise_exception(1) }}", "{% if", "{{ f(1) }}"])
def test_a_template_that_ends_is_left_to_the_engine(template: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    try_template(tmp_path, {})


RUN = """
[model]
path = "model"
[data]
train = "rows.jsonl"
[reward]
function = "gsm8k"
"""
ENDS: dict[str, tuple[str, Make, list[str]]] = {
    "a run file that is a device": ("run.toml", lambda path: path.symlink_to("/dev/zero"), []),
    "a model with many layers": ("model", said(num_hidden_layers=10**9), []),
    "an override of many layers": ("model", said(), ["--set", "model.overrides.num_hidden_layers=1000000000"]),
    "a name of a run that leaves its folder": ("run.toml", holding(RUN), ["--set", "run.name=../x"]),
    "an override of many parts": ("run.toml", holding(RUN), ["--set", "a." * 20_000 + "a=1"]),
}


@pytest.mark.slow("each is a command")
@pytest.mark.parametrize("case", ENDS)
def test_a_command_ends_with_one_sentence_and_code_78(case: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "answer": "1"}\n')
    name, make, options = ENDS[case]
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    command = [sys.executable, "-m", "asyncrl", "run", "run.toml", "--dry-run", *options]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 78, ended
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("asyncrl: ")
    assert "Traceback" not in ended.stderr
