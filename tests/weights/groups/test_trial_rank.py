import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asyncrl.weights.groups.trial import TrialPart
from asyncrl.weights.groups.trial_rank import run_part
from tests.weights.party import LONG_S, SHORT_S


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
