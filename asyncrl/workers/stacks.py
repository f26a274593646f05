"""Stacks of this process in words: where each thread is, and what each asyncio task waits for."""

import asyncio
import sys
import threading
import traceback
from concurrent.futures import thread
from types import FrameType
from typing import Any

MAX_CHARS = 200_000
"""Length of the text; the rest is left out, and counted."""
MAX_FRAMES = 100
"""Frames of one task."""
FRAMES, AWAITED = ("cr_frame", "gi_frame", "ag_frame"), ("cr_await", "gi_yieldfrom", "ag_await")
"""Attributes of coroutines, generators and asynchronous generators: their frame, and what they wait for."""

POOL_LOOP = thread._worker.__code__
"""Loop of a thread of an executor."""


def current_stacks() -> str:
    """
    Stacks of all threads and of all tasks of the running event loop, each with its name, the innermost call last.

    The main thread is the first; threads of a pool that wait for work are named in the last line.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda found: found[0] != main)
    busy = [(names.get(number, str(number)), frame) for number, frame in frames if not _is_idle(frame)]
    parts = [f"thread {name}\n{''.join(traceback.format_stack(frame))}" for name, frame in busy]
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    parts += [f"task {task.get_name()}\n{_task(task)}" for task in tasks]
    if idle := sorted(names.get(number, str(number)) for number, frame in frames if _is_idle(frame)):
        parts.append(f"threads of pools that wait for work ({len(idle)}): {', '.join(idle)}\n")
    text = "\n".join(parts)
    left_out = len(text) - MAX_CHARS
    return text if left_out <= 0 else f"{text[:MAX_CHARS]}\n... {left_out} more characters"


def _is_idle(frame: FrameType) -> bool:
    """True for a thread of an executor without work: its innermost call in Python is the one that takes it."""
    return frame.f_code is POOL_LOOP


def _task(task: "asyncio.Task[object]") -> str:
    """Frames of a task from its coroutine down to what that awaits; `Task.get_stack` has the first of them only."""
    frames: list[traceback.FrameSummary] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < MAX_FRAMES:
        frame = next((found for name in FRAMES if (found := getattr(awaited, name, None))), None)
        if frame is not None:
            frames += traceback.extract_stack(frame, limit=1)
        awaited = next((found for name in AWAITED if (found := getattr(awaited, name, None)) is not None), None)
    return "".join(traceback.format_list(frames))
