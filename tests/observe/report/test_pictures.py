"""Pictures inside the page, with words that cannot become markup."""

from collections.abc import Callable, Iterator

import pytest

from asyncrl.observe.pictured_samples import PicturedSample
from asyncrl.observe.report.page import Markup
from asyncrl.observe.report.pictures import MAX_CHARS, pictures
from asyncrl.observe.run_record import RunRecord
from tests.conftest import draw_picture

MakeRecord = Callable[..., RunRecord]


def sample(**changes: object) -> PicturedSample:
    fields = {"step": 3, "prompt": "<image> How many?", "completion": "<b>four", "answer": "4", "reward": 0.5}
    return PicturedSample(**fields | {"files": [draw_picture(8, 8)]} | changes)  # type: ignore[arg-type]


@pytest.fixture
def record() -> MakeRecord:
    def make(*pictured: PicturedSample, name: str = "run") -> RunRecord:
        return RunRecord(name=name, config={}, summary=None, metrics=[], events=[], pictured=list(pictured), notes=[])

    return make


def html(parts: Iterator[Markup]) -> str:
    return "\n".join(parts)


def test_a_run_without_pictures_has_no_section(record: MakeRecord) -> None:
    assert html(pictures([record(), record()])) == ""


def test_a_picture_is_inside_the_page_with_its_completion_and_reward(record: MakeRecord) -> None:
    found = html(pictures([record(sample())]))
    assert 'src="data:image/png;base64,iVBOR' in found
    assert "&lt;b&gt;four" in found
    assert "reward 0.5, answer 4" in found
    assert "the first groups of step 3" in found


def test_a_file_that_is_no_known_picture_is_not_put_into_the_page(record: MakeRecord) -> None:
    found = html(pictures([record(sample(files=[b"<svg onload=alert(1)>"]))]))
    assert "<img" not in found
    assert "a picture in another format" in found


def test_long_texts_are_cut_and_several_runs_named(record: MakeRecord) -> None:
    found = html(pictures([record(sample(completion="x" * 1000), name="one"), record(name="two")]))
    assert "x" * MAX_CHARS + " …" in found
    assert "one: one trajectory" in found
