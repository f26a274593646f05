"""Every run file in conf/ is accepted as it is."""

from pathlib import Path

import pytest

from asyncrl.config.run_file import load_config

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_every_run_file_is_accepted(path):
    load_config(path)
