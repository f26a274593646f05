import subprocess
import sys

import pytest

NAMES_ITSELF = """
import ctypes
from asyncrl.processes.prctl import PR_SET_DUMPABLE, prctl
PR_GET_DUMPABLE = 3
before = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE)
prctl(PR_SET_DUMPABLE, 0)
print(before, ctypes.CDLL(None).prctl(PR_GET_DUMPABLE))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_the_kernel_hears_an_option() -> None:
    done = subprocess.run([sys.executable, "-c", NAMES_ITSELF], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"
