import io
import json
import os
import subprocess
import sys

import pytest

from asyncrl.workers.printed import FORMAT_VARIABLE, MAX_CHARS, PrintedEvents

NAMES_ITSELF = """
import ctypes
from asyncrl.workers.printed import PR_SET_DUMPABLE, prctl
PR_GET_DUMPABLE = 3
before = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE)
prctl(PR_SET_DUMPABLE, 0)
print(before, ctypes.CDLL(None).prctl(PR_GET_DUMPABLE))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_the_kernel_hears_an_option() -> None:
    done = subprocess.run([sys.executable, "-c", NAMES_ITSELF], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"


# ── test printed ──────────────────────────────────────────────────────────────────────────────
# Prints become events, line by line, where the node logs JSON.


def events(written: io.BytesIO) -> list[str]:
    decoded = [json.loads(line) for line in written.getvalue().splitlines()]
    assert all((event["event"], event["level"]) == ("printed", "info") for event in decoded)
    return [event["text"] for event in decoded]


def test_each_line_is_an_event_once_it_is_complete() -> None:
    written = io.BytesIO()
    stream = PrintedEvents(written, line_buffering=True)
    print("grading", 3, file=stream)
    print("2 + 3 = \N{LATIN SMALL LETTER E WITH ACUTE}", end="", file=stream)
    assert events(written) == ["grading 3"]
    print("\n\nlast", file=stream)
    assert events(written) == ["grading 3", "2 + 3 = \N{LATIN SMALL LETTER E WITH ACUTE}", "", "last"]


def test_a_line_without_end_is_cut() -> None:
    written = io.BytesIO()
    stream = PrintedEvents(written, line_buffering=True)
    print("x" * (MAX_CHARS + 1), end="", file=stream)
    assert events(written) == ["x" * (MAX_CHARS + 1)]


@pytest.mark.parametrize(
    ("form", "said"), [("json", '{"event": "printed", "level": "info", "text": "hello"}\n'), ("text", "hello\n")]
)
def test_prints_have_the_form_of_the_nodes_log_and_come_at_once(form: str, said: str) -> None:
    source = "import os; from asyncrl.workers.printed import mark_prints; mark_prints(); print('hello'); os._exit(0)"
    environment = {**os.environ, FORMAT_VARIABLE: form}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == said


def test_a_line_that_the_end_of_the_process_cuts_short_is_an_event_too() -> None:
    source = "from asyncrl.workers.printed import mark_prints; mark_prints(); print('50 %', end='')"
    environment = {**os.environ, FORMAT_VARIABLE: "json"}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["text"] == "50 %"
