import asyncio
from pathlib import Path

import pytest

from asyncrl.weights.groups.trial import TrialResult, trial, verdict
from tests.weights.groups.fake_npu import installed_at

SENT = TrialResult(checksum="cafe", seconds=0.1)


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param(SENT, "", id="all arrived"),
        pytest.param(TrialResult(failure="a peer is gone"), "a peer is gone", id="said so"),
        pytest.param(TrialResult(checksum="0000"), "what arrived is not what was sent", id="did not say so"),
    ],
)
def test_a_trial_succeeds_only_if_the_bytes_are_the_same(received: TrialResult, expected: str) -> None:
    said = verdict([SENT, received])
    assert said.endswith(expected)
    assert bool(said) == bool(expected)


def test_a_library_that_ends_broadcasts_without_moving_anything_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It even moves the first one, with which a group proves itself."""
    for name, value in installed_at(tmp_path, "forgetful").items():
        monkeypatch.setenv(name, value)
    done = asyncio.run(trial("hccl", ("npu:0", "npu:1"), 1 << 16, 20.0))
    assert done.failure == "the broadcast ended without an error, but what arrived is not what was sent"
    assert done.bytes_per_s == 0.0
