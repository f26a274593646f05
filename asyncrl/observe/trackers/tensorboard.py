"""TensorBoard event files, written with the tensorboard package; needs neither torch nor TensorFlow."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.observe.run_directory import RunSummary
from asyncrl.observe.trackers.tracker import Tracked


class TensorBoard:
    """Writes into ``log_dir``; if empty, a folder in the run directory. View with ``tensorboard --logdir runs``."""

    def __init__(self, *, log_dir: str = "") -> None:
        self._log_dir = log_dir
        self._writer: Any = None

    def start(self, run: Tracked, /) -> None:
        """Open a new file; TensorBoard reads all files of the folder as one run."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self._log_dir or str(run.folder / "events"))
        self._text(0, "config", "\n".join(f"    {key} = {value!r}" for key, value in run.config.items()))

    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        self._write(step, [{"tag": name, "simple_value": value} for name, value in metrics.items()])

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None:
        """Write the fields as text under ``events/KIND``."""
        self._text(step, f"events/{kind}", msgspec.json.encode(fields).decode())

    def finish(self, summary: RunSummary | None, /) -> None:
        if summary is not None:
            self._text(summary.steps, "summary", msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
        self._writer.close()

    def _text(self, step: int, tag: str, text: str) -> None:
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        metadata = create_summary_metadata(display_name="", description="")
        self._write(step, [{"tag": tag, "tensor": tensor, "metadata": metadata}])

    def _write(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(**value) for value in values])
        self._writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
        self._writer.flush()
