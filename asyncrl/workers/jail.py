"""
``python -I -S jail.py FOLDER USER_ID CPU_S MEMORY FILE_BYTES PROCESSES READY_FD``: run an untrusted program.

Sets resource limits and runs ``FOLDER/program.py``. It imports nothing of asyncrl, because it is run by its path.
`Sandbox` starts it, and reads from READY_FD that the program was started, so that a failing program cannot be mistaken
for a failure of the sandbox.

    unshare ─▶ jail, first process of its namespace ─▶ program         with namespaces
    worker ──▶ jail, which becomes the program                         without

With namespaces it waits for the program, and the kernel ends the namespace when it exits. The program must not be the
first process itself: that process can ignore the signal sent when its parent dies.
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
    """Start the program; wait for it if this is the first process of a namespace."""
    if os.getpid() != 1:
        _prctl(PR_SET_PDEATHSIG, SIGKILL)
    else:
        _prctl(PR_SET_DUMPABLE, 0)  # The program may have the same user: it must not trace this process.
        if child := os.fork():
            sys.exit(_exit_code(child))
    _exec_program()


def _exec_program() -> None:
    """Set limits, give up privileges, and become the program."""
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
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)  # set-user-id programs give no privileges from here on
    command = [sys.executable, "-I", "-B", str(Path(folder, "program.py"))]
    # A new one, without this process's access tokens; one thread, as numeric libraries would start many.
    environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.write(ready_fd, READY)
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        os.write(ready_fd, f", but {error}".encode())
        raise


def _exit_code(child: int) -> int:
    """Wait for the program and return its exit code; orphans that become children of this process are reaped too."""
    while True:
        process, status = os.wait()
        if process == child:
            return max(0, os.waitstatus_to_exitcode(status)) or int(status != 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _limit(kind: int, amount: int) -> None:
    """Lower a limit; a hard limit that is lower already is kept."""
    _, hard = resource.getrlimit(kind)
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


if __name__ == "__main__":
    main()
