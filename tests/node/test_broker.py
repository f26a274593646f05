"""Reports of a broker before it serves."""

from pathlib import Path

from asyncrl.config.sections import Data
from asyncrl.data.prompts import train_stream
from asyncrl.node.broker import _report_skipped_rows
from asyncrl.observe.run_directory import RunDirectory


def test_rows_that_are_skipped_are_counted_with_their_reasons(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, "run")
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "a", "answer": 1}\n{"prompt": "", "answer": 1}\n{"prompt": "b"}\n{"prompt": "", "answer": 1}\n'
    )
    prompts = train_stream(Data(train=str(tmp_path / "rows.jsonl"), on_bad_row="skip"), seed=0)

    _report_skipped_rows(directory, {"train": prompts, "held_out": None})

    (event,) = directory.read_events()
    assert (event["event"], event["split"], event["num_rows"]) == ("data.rows_skipped", "train", 3)
    assert list(event["reasons"].items()) == [
        ("'prompt' is empty", 2),
        ("'answer' must be text or a number, got null", 1),
    ]
