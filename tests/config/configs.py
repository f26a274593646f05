"""Smallest valid configuration, with sections to vary."""

from typing import Any

import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError


def made(**sections: dict[str, Any]) -> Config:
    least: dict[str, dict[str, Any]] = {"model": {"path": "m"}, "data": {"train": "t"}}
    return decode({**sections, **{key: least[key] | sections.get(key, {}) for key in least}})


def refused(**sections: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        made(**sections)
    return str(raised.value)
