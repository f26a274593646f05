"""What went wrong in somebody else's function, in one line that says where to look."""

import traceback

MAX_CHARS = 400
"""Of the exception's own text: some quote their whole input."""


def describe(error: BaseException, *ours: str) -> str:
    """
    ``ValueError: no number (score.py:12)``: type, message, and the innermost line of the file that called for it.

    Not the innermost line of all: that is often deep inside a library, where nobody can change anything.

    Args:
        error: As caught.
        ours: Files and folders whose frames are not the culprit's.
    """
    text = " ".join(str(error).encode("utf-8", "replace").decode().split())
    what = f"{type(error).__name__}: {text[:MAX_CHARS]}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return what  # its text names file and line already
    place = _place(error, ours)
    return f"{what} ({place})" if place else what


def hung(timeout_s: float) -> str:
    """What is said of a sample that got no verdict in time."""
    return f"the function hung: no verdict within {timeout_s:g} s; make it faster or raise reward.timeout_s"


def _place(error: BaseException, ours: tuple[str, ...]) -> str:
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(("<frozen ", *ours))
    ]
    if not frames:
        return ""
    culprit = frames[0][0]
    line = next(line for file, line in reversed(frames) if file == culprit)
    return f"{culprit}:{line}"
