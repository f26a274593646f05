"""
Hostile reward functions, as a plug-in: `score` does what the completion names, or judges honestly.

Each function returns, raises, hangs or dies; none may cost more than its own verdict. Programs that are left behind
are called ``sleep 424242``.
"""

import asyncio
import atexit
import builtins
import ctypes
import gc
import inspect
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from types import FrameType
from typing import Any

from asyncrl.errors import VerifierError

LEFT_BEHIND = ["sleep", "424242"]
PR_SET_PDEATHSIG = 1


def score(sample: Any) -> Any:
    if sample.completion == "honest":
        return {"score": float(sample.answer), "answer": "fine"}
    return globals()[sample.completion]()


# ── it ends its own process ─────────────────────────────────────────────────────────────────


def exits() -> None:
    sys.exit(3)


def exits_at_once() -> None:
    os._exit(9)


def aborts() -> None:
    os.abort()


def segfaults() -> None:
    ctypes.string_at(0)


def recurses() -> None:
    recurses()


def overflows_the_stack() -> None:
    sys.setrecursionlimit(10**9)
    list(map(lambda _: overflows_the_stack(), [0]))  # noqa: C417  frames of C


def becomes_another_program() -> None:
    os.execvp(LEFT_BEHIND[0], LEFT_BEHIND)


def is_killed_by_its_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    sleeps()


def exits_slowly() -> None:
    atexit.register(sleeps)
    threading.Thread(target=sys.exit).start()
    raise KeyboardInterrupt


# ── it never returns ────────────────────────────────────────────────────────────────────────


def sleeps() -> None:
    while True:
        time.sleep(3600)


def spins() -> None:
    while True:
        pass


def holds_the_interpreter() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


def computes_forever() -> None:
    str(9**9**9)


def ignores_signals() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    sleeps()


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def returns_what_never_comes() -> Any:
    return asyncio.sleep(3600)


def traces_itself() -> None:
    sys.settrace(lambda *_: time.sleep(3600))
    exits()


# ── it harms its parent ─────────────────────────────────────────────────────────────────────


def kills_its_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    sleeps()


def survives_its_parent() -> None:
    subprocess.Popen(LEFT_BEHIND, start_new_session=True)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    os.kill(os.getppid(), signal.SIGKILL)
    sleeps()


def stops_its_parent() -> None:
    subprocess.Popen(LEFT_BEHIND, start_new_session=True)
    os.kill(os.getppid(), signal.SIGSTOP)
    sleeps()


def terminates_its_parent() -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    sleeps()


# ── it prints ───────────────────────────────────────────────────────────────────────────────


def prints_forever() -> None:
    while True:
        print("x" * 1000)  # noqa: T201


def prints_to_a_descriptor_forever() -> None:
    chunk = b"y" * (1 << 20)
    while True:
        os.write(1, chunk)
        os.write(2, chunk)


def prints_much_and_raises() -> None:
    sys.stderr.write("z\n" * 20_000_000)
    raise RuntimeError("after forty megabytes")


def lets_a_child_print() -> None:
    subprocess.run(["yes"], check=True)


# ── it starts processes, and leaves them behind ─────────────────────────────────────────────


def daemonizes() -> None:
    for _ in range(10):
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.closerange(0, 100)
                os.execve(shutil.which("sleep") or "", LEFT_BEHIND, {})
            os._exit(0)
    raise RuntimeError("ten daemons")


def leaves_children() -> None:
    for _ in range(5):
        subprocess.Popen(LEFT_BEHIND)
    subprocess.run("sleep 424242 & setsid sleep 424242 &", shell=True, check=True)
    os._exit(4)


def bombs() -> None:
    while True:
        if not os.fork():
            time.sleep(3600)


def bombs_with_bombs() -> None:
    while True:
        os.fork()


def forks_and_returns_twice() -> Any:
    os.fork()
    return float("nan")


def starts_threads() -> None:
    for _ in range(4):
        threading.Thread(target=spins, daemon=True).start()
    raise RuntimeError("four threads spin")


# ── it takes memory and disk ────────────────────────────────────────────────────────────────


def hoards() -> None:
    kept = []
    while True:
        kept.append(b"m" * (32 << 20))


def lets_a_child_hoard() -> None:
    if not os.fork():
        hoards()
    sleeps()


def writes_a_file_forever() -> None:
    with tempfile.TemporaryFile() as file:
        while True:
            file.write(b"f" * (1 << 20))


# ── it handles what is not its own ──────────────────────────────────────────────────────────


def closes_everything() -> float:
    os.closerange(0, 1000)
    return 1.0


def closes_everything_and_hangs() -> None:
    os.closerange(0, 1000)
    sleeps()


def writes_to_every_descriptor() -> float:
    for fd in range(3, 64):
        try:
            os.write(fd, b"verdict: 1.0, believe me")
        except OSError:
            continue
    return 1.0


def announces_gigabytes() -> None:
    for fd in range(3, 64):
        try:
            os.write(fd, b"\xff\xff\xff\x7f" + b"g" * 100_000)
        except OSError:
            continue
    sleeps()


def answers_with_a_deep_tree() -> None:
    """Writes a verdict with one field too many, so deep that decoding it recurses without end."""
    fields = b"\x96\xa6Judged\x00\xc0\xa0\xc2" + b"\x91" * 60_000 + b"\x01"
    for fd in range(3, 64):
        try:
            os.write(fd, len(fields).to_bytes(4, "little") + fields)
        except OSError:
            continue
    sleeps()


def forges_a_reward() -> float:
    """Answers for itself, and returns another answer, which is not to become that of the next input."""
    pipe = sys.modules["asyncrl.reward.workers.messages"]
    verdict = sys.modules["asyncrl.reward.verifier"].Verdict(1e308, {})
    outboxes = [found for found in gc.get_objects() if isinstance(found, io.BufferedWriter) and found.fileno() > 2]
    numbers = [found.f_locals["number"] for found in _frames() if found.f_code.co_name == "_judge"]
    outboxes[0].write(pipe.encode(pipe.Judged(numbers[0], [verdict])))
    outboxes[0].flush()
    return 0.25


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame:
        yield frame
        frame = frame.f_back


def patches_the_codec() -> float:
    worker = sys.modules["__main__"]
    worker.encode = lambda message: b"\x04\x00\x00\x00junk"  # type: ignore[attr-defined]
    return 1.0


def forgets_its_modules() -> None:
    sys.modules.clear()
    raise RuntimeError("no modules")


def breaks_isinstance() -> float:
    builtins.isinstance = None  # type: ignore[assignment]
    return 1.0


def lowers_its_limits() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    raise RuntimeError("no files")


def removes_its_folder() -> None:
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    folder.rmdir()
    Path.cwd()


# ── it returns or raises odd things ─────────────────────────────────────────────────────────


class Slow(float):
    def __float__(self) -> float:
        time.sleep(3600)
        return 1.0


class Broken(Real):
    def __float__(self) -> float:
        raise ArithmeticError("not today")


Broken.__abstractmethods__ = frozenset()


class Endless(Mapping[str, float]):
    def __getitem__(self, key: str) -> float:
        return 1.0

    def __contains__(self, key: object) -> bool:
        return True

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            yield f"m{(number := number + 1)}"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Loud(Exception):
    def __str__(self) -> str:
        return "loud " * 20_000_000


def returns_nan() -> float:
    return float("nan")


def returns_infinity() -> float:
    return float("-inf")


def returns_the_largest_double() -> float:
    return 1e308


def returns_a_huge_int() -> int:
    return 10**10_000


def returns_nothing() -> None:
    return None


def returns_a_text() -> str:
    return "1.0" * 10_000_000


def returns_a_slow_number() -> Any:
    return Slow(1.0)


def returns_a_broken_number() -> Any:
    return Broken()  # type: ignore[abstract]


def returns_no_score() -> Any:
    return {"accuracy": 1.0}


def returns_many_metrics() -> Any:
    return {"score": 1.0} | {f"metric {number}": 1.0 for number in range(10_000)}


def returns_endless_metrics() -> Any:
    return Endless()


def returns_a_long_name() -> Any:
    return {"score": 1.0, "n" * 10_000_000: 1.0}


def returns_a_nan_metric() -> Any:
    return {"score": 1.0, "loss": float("nan")}


def raises_without_text() -> None:
    raise Mute


def raises_a_gigabyte() -> None:
    raise Loud


def raises_half_a_character() -> None:
    raise ValueError("\ud800" * 100_000)


def raises_generator_exit() -> None:
    raise GeneratorExit


def raises_our_error_at_length() -> None:
    raise VerifierError("v" * 10_000_000)
