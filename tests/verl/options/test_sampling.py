"""Every row of the tables of sampling has settings that exist, or a reason."""

import pytest

from asyncrl.config.config import Config
from asyncrl.verl.option import Option
from asyncrl.verl.options import sampling as tables
from tests.config.test_other_names import keys

TABLES = {name: table for name, table in vars(tables).items() if isinstance(table, dict)}
ROWS = [(key, row) for table in TABLES.values() for key, row in table.items() if isinstance(row, Option)]


@pytest.mark.parametrize(("key", "row"), ROWS, ids=[key for key, _ in ROWS])
def test_a_row_has_settings_or_a_reason(key: str, row: Option) -> None:
    assert set(row.settings) <= keys(Config)
    assert row.settings if row.fate == "mapped" else row.note
    assert not row.note.endswith(".")
    assert key == key.strip()
