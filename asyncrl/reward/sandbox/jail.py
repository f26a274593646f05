"""
``python -I -S jail.py FOLDER USER_ID CPU_S MEMORY FILE_BYTES PROCESSES READY_FD``: become an untrusted program.

Runs ``FOLDER/program.py``, after the kernel has been told what it may use. It imports nothing of asyncrl: it is run by
its path, before anything is set up. `Sandbox` starts it, and learns from READY_FD whether the program
was begun: nothing the program does can look like a failure of ours.

    unshare ─▶ jail, first process of its namespace ─▶ program         inside walls
    worker ──▶ jail, which becomes the program                         without

Inside walls it stays and waits, and the namespace ends with it. The program must not be that first process itself: it
could make itself deaf to the end of those who started it.
"""

import ctypes
import os
import resource
import sys
from pathlib import Path

READY = b"ready"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
"""``prctl(2)``."""
SIGKILL = 9


def main() -> None:
    """Begin the program, and wait for it if we are the first process here."""
    if os.getpid() != 1:
        _prctl(PR_SET_PDEATHSIG, SIGKILL)
    else:
        _prctl(PR_SET_DUMPABLE, 0)  # The program may have our user: it must not look into us.
        if child := os.fork():
            sys.exit(_exit_code(child))
    _begin()


def _begin() -> None:
    """Give up what is not needed, and go."""
    folder, *numbers = sys.argv[1:]
    user_id, cpu_s, memory_bytes, file_bytes, processes, ready_fd = map(int, numbers)
    os.set_inheritable(ready_fd, False)
    os.chdir(folder)
    _limit(resource.RLIMIT_CPU, cpu_s)
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_NPROC, processes)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 0)
    if user_id:
        _become(user_id)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)  # A program with the set-user-id bit gives no rights any more.
    command = [sys.executable, "-I", "-B", str(Path(folder, "program.py"))]
    os.write(ready_fd, READY)
    try:
        os.execve(command[0], command, _environment(folder))
    except OSError as error:
        os.write(ready_fd, f", but {error}".encode())
        raise


def _exit_code(child: int) -> int:
    """How the program ended; orphans that come to us meanwhile are only buried."""
    while True:
        process, status = os.wait()
        if process == child:
            return max(0, os.waitstatus_to_exitcode(status)) or int(status != 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _limit(kind: int, amount: int) -> None:
    """Lower a limit; where ours is lower already, it stays."""
    _, hard = resource.getrlimit(kind)
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


def _become(user_id: int) -> None:
    os.setgroups([])
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)


def _environment(folder: str) -> dict[str, str]:
    """Nothing of ours: there are tokens in it. One thread, because libraries of arithmetic would start many."""
    where = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    return where | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
