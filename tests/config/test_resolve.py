from pathlib import Path

from asyncrl.config.resolve import with_absolute_paths
from asyncrl.config.run_file import decode

BASE = Path("/srv/run")


def test_relative_paths_are_resolved_on_the_brokers_machine() -> None:
    raw = {
        "model": {"path": "models/a"},
        "data": {"train": ["a.parquet", "/data/b.parquet"], "held_out": "c.parquet"},
        "reward": {"function": "rewards.py:score"},
    }
    config = with_absolute_paths(decode(raw), BASE)
    assert config.model.path == "/srv/run/models/a"
    assert config.data.train == ["/srv/run/a.parquet", "/data/b.parquet"]
    assert config.data.held_out == "/srv/run/c.parquet"
    assert config.reward.function == "/srv/run/rewards.py:score"


def test_built_in_names_and_empty_paths_stay() -> None:
    config = decode({"model": {"path": "/m"}, "data": {"train": "/t"}, "reward": {"function": "gsm8k"}})
    assert with_absolute_paths(config, BASE) == config
