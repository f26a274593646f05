"""Lines about where a run goes on that is resumed: its checkpoint, and the settings that were changed meanwhile."""

from collections.abc import Iterator

from asyncrl.errors import LedgerError
from asyncrl.files.checkpoints import newest_complete
from asyncrl.files.json_lines import JsonLines
from asyncrl.node.broker.origin import copy_sentence, original_of
from asyncrl.observe.run_directory import RunDirectory


def continuation_lines(directory: RunDirectory) -> Iterator[str]:
    """Lines for the terminal; none about a run that has just been created, or whose records are damaged."""
    if original := original_of(directory):
        yield copy_sentence(directory, original)
    try:
        last, events = JsonLines(directory.metrics).last(), directory.read_events()
    except LedgerError:  # The broker names the damage.
        return
    done = int((last or {}).get("step", -1)) + 1
    found = newest_complete(directory.checkpoints)
    steps, source = 0, "resuming from the beginning, without a checkpoint"
    if found:  # The trainer compares every byte, and says so if it has to take an older one.
        steps, source = found[0], f"resuming from checkpoint {found[1]}, if it is intact"
    if done or found:
        yield f"{source}{_repeated(steps, done)}"
    changed = {event["key"]: event["value"] for event in events if event.get("event") == "setting.changed"}
    if changed:
        yield f"changed by `asyncrl set`: {', '.join(f'{key} = {value}' for key, value in changed.items())}"


def _repeated(steps: int, done: int) -> str:
    if steps >= done:
        return ""
    what = f"step {done} is" if done == steps + 1 else f"steps {steps + 1} to {done} are"
    return f"; {what} computed again, with the same batches"
