import subprocess
import sys
import threading

import pytest

from asyncrl.errors import TrackerError
from asyncrl.tools.track import CallLimit


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_call_that_returns_in_time_does_not_expire() -> None:
    expired: list[str] = []
    with CallLimit(60.0, expired.append).on("wandb.log"):
        pass
    assert expired == []
    assert not timers()


def test_a_call_that_hangs_is_named() -> None:
    expired: list[str] = []
    told = threading.Event()

    def tell(why: str) -> None:
        expired.append(why)
        told.set()

    with CallLimit(0.01, tell).on("wandb.log"):
        assert told.wait(10)
    assert expired == ["wandb.log took more than 0.01 s"]


def test_its_timer_ends_with_a_call_that_raised() -> None:
    with pytest.raises(ValueError, match="bad"), CallLimit(60.0).on("wandb.log"):
        raise ValueError("bad")
    assert not timers()


def test_a_process_that_hangs_ends_with_one_sentence() -> None:
    code = (
        "import threading\n"
        "from asyncrl.tools.track import CallLimit\n"
        "with CallLimit(0.05).on('wandb.log'):\n"
        "    threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (TrackerError.exit_code, "asyncrl: wandb.log took more than 0.05 s\n")
