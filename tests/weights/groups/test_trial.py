import asyncio
import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncrl.weights.groups.trial import TrialPart, TrialResult, combine, trial
from asyncrl.weights.groups.trial_rank import run_part
from tests.weights.groups.fake_npu import installed_at
from tests.weights.party import LONG_S, SHORT_S

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


# ── a rank ──────────────────────────────────────────────────────────────────────────────────────


def part(rank: int, folder: Path, device: str = "cpu", deadline_s: float = LONG_S) -> TrialPart:
    return TrialPart("gloo", device, rank, str(folder / "store"), 1000, deadline_s)


def test_both_ranks_report_the_checksum_of_the_bytes_that_rank_0_sent(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as ranks:
        sent, received = ranks.map(run_part, (part(rank, tmp_path) for rank in (0, 1)))

    assert sent.checksum == received.checksum == hashlib.sha256(random.Random(0).randbytes(1000)).hexdigest()
    assert sent.seconds > 0
    assert (sent.failure, received.failure) == ("", "")


def test_a_failure_is_reported_in_one_line_and_not_raised(tmp_path: Path) -> None:
    unknown = run_part(part(0, tmp_path, device="tpu:0"))
    assert unknown.failure == "'tpu:0' is not a device; expected cpu, cuda:N or npu:N"

    alone = run_part(part(0, tmp_path, deadline_s=SHORT_S))
    assert alone.failure
    assert "\n" not in alone.failure
