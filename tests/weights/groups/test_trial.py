import asyncio
from pathlib import Path

import pytest

from asyncrl.weights.groups.trial import TrialResult, combine, trial
from tests.weights.groups.fake_npu import installed_at

SENT = TrialResult(checksum="cafe", seconds=0.1)


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param(SENT, "", id="all arrived"),
        pytest.param(TrialResult(failure="a peer is gone"), "a peer is gone", id="reported"),
        pytest.param(TrialResult(checksum="0000"), "the received bytes differ from the sent bytes", id="not reported"),
    ],
)
def test_a_trial_succeeds_only_if_the_bytes_are_the_same(received: TrialResult, expected: str) -> None:
    failure = combine([SENT, received]).failure
    assert failure.endswith(expected)
    assert bool(failure) == bool(expected)


@pytest.mark.slow("real processes that import torch")
def test_a_library_that_ends_broadcasts_without_sending_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library even sends the first broadcast, with which a group is verified."""
    for name, value in installed_at(tmp_path, "forgetful").items():
        monkeypatch.setenv(name, value)
    done = asyncio.run(trial("hccl", ("npu:0", "npu:1"), 1 << 16, 20.0))
    assert done.failure == "the broadcast reported no error, but the received bytes differ from the sent bytes"
