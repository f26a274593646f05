"""Memory pressure is read as Linux writes it."""

from pathlib import Path

import pytest

from asyncrl.node.machine.pressure import memory_stall


def test_the_share_is_that_of_ten_seconds_in_which_some_process_waited(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text(
        "some avg10=12.50 avg60=3.00 avg300=1.00 total=99\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=9\n"
    )
    assert memory_stall(file) == pytest.approx(0.125)


def test_a_kernel_without_it_tells_of_none(tmp_path: Path) -> None:
    assert memory_stall(tmp_path / "memory") == 0.0
