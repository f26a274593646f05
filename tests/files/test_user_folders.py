from pathlib import Path

import pytest

from asyncrl.files.user_folders import user_folder


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s")),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, Path("/h/.local/state")),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, Path("/h/.local/state")),
        ({}, None),
    ],
)
def test_a_folder_is_named_or_below_the_home_directory(environment: dict[str, str], expected: Path | None) -> None:
    assert user_folder("state", environment) == expected


def test_each_kind_has_a_folder_of_its_own() -> None:
    assert user_folder("config", {"HOME": "/h"}) == Path("/h/.config")
    assert user_folder("cache", {"HOME": "/h"}) == Path("/h/.cache")
