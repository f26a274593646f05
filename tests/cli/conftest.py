"""A run file of a whole toy run, as far as commands look at it before anything starts."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.config.model.directories import write_model


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file with a model that looks whole, and a dataset. What needs torch is not checked."""
    monkeypatch.setattr("asyncrl.runtime.launch.check_architecture", lambda *_: [])
    write_model(tmp_path / "model")
    rows = [{"prompt": "how many", "answer": "1", "data_source": "toy"}] * 4
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    path = tmp_path / "toy.toml"
    path.write_text(
        f'[run]\nsteps = 3\ndir = "{tmp_path}/runs"\n[model]\npath = "{tmp_path}/model"\n'
        f'[data]\ntrain = "{tmp_path}/train.parquet"\n[schedule]\ngroups_per_step = 2\ngroup_size = 4\n'
        '[reward]\nfunction = "gsm8k"\n'
    )
    return path
