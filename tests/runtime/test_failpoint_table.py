"""The table of failpoints is the one of the code."""

import re
from pathlib import Path

import asyncrl
from asyncrl.runtime.process import EPISODE_PLACES, PLACES, SHARD_PLACES, TURN_PLACES


def test_the_places_are_those_that_the_code_passes() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(asyncrl.__file__).parent.rglob("*.py")]
    call = re.compile(r'^ +failpoint\("([a-z._]+)"\)', re.MULTILINE)
    passed = {place for source in sources for place in call.findall(source)}
    assert passed == set(PLACES + SHARD_PLACES + TURN_PLACES + EPISODE_PLACES)
