"""
Program that runs a command in a jail: ``python -I -S jail.py ROOT USER_ID PROCESSES FAILED_FD FOLDER COMMAND...``.

`asyncrl.tools.verl.launch` starts it by its path, so it imports nothing of asyncrl. The command

    sees       ROOT as the whole file system, and starts in FOLDER below it
    cannot     open sockets, signal processes, or leave its process group: the kernel refuses these system calls
    is         not root and cannot become root; its time, memory, processes and file sizes are limited

An ordinary user may change the root only in a user namespace, which some machines forbid. If any part of the jail
cannot be built, the reason is written to FAILED_FD and the command is not run.
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

CPU_S, MEMORY, FILE_BYTES, FILES = 5, 512 << 20, 4 << 20, 64
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
CLONE_NEWUSER = 0x10000000
NOBODY = 65534
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1
"""Classic BPF, ``seccomp(2)``: instructions, and what a filter returns; `REFUSE` fails the call with EPERM."""

REFUSED: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, (41, 53, 62, 109, 112, 200, 234)),
    "aarch64": (0xC00000B7, (198, 199, 129, 154, 157, 130, 131)),
}
"""Architecture in ``linux/audit.h``, and numbers of socket, socketpair, kill, setpgid, setsid, tkill and tgkill."""


def main() -> None:
    """Build the jail, then replace this process with the command."""
    root, user_id, processes, failed_fd, folder, *command = sys.argv[1:]
    os.set_inheritable(int(failed_fd), False)
    try:
        _limit(int(processes))
        _enter(root, int(user_id))
        os.chdir(folder)
        _refuse_calls()
        os.execve(command[0], command, dict(os.environ))
    except (OSError, KeyError) as error:
        os.write(int(failed_fd), f"{type(error).__name__}: {error}".encode())
        sys.exit(1)


def _limit(processes: int) -> None:
    for kind, amount in (
        (resource.RLIMIT_CPU, CPU_S),  # SIGXCPU, which the starter reads as this limit; a second later SIGKILL
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lower = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (lower, lower + 1 if kind == resource.RLIMIT_CPU and lower < hard else lower))


def _enter(root: str, user_id: int) -> None:
    """Change the root directory and drop root's rights; an ordinary user does so in a new user namespace."""
    user, group = os.geteuid(), os.getegid()
    if user:
        _call("unshare", CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
        os.chroot(root)
        return
    os.chroot(root)
    os.setgroups([])
    os.setresgid(user_id, user_id, user_id)
    os.setresuid(user_id, user_id, user_id)


def _refuse_calls() -> None:
    architecture, calls = REFUSED[platform.machine()]
    last = len(calls)
    program = [
        (LOAD, 0, 0, 4),  # the architecture: a process may make calls by another one's numbers
        (JUMP_IF_EQUAL, 0, last + 2, architecture),
        (LOAD, 0, 0, 0),  # the number of the call
        *((JUMP_IF_EQUAL, last - place, 0, call) for place, call in enumerate(calls)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(filters), 0, 0)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
