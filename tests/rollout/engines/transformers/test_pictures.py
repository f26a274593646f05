"""Pictures of requests: shared, placed among tokens, and encoded once."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from asyncrl.rollout.engines.transformers.pictures import RECENT, PlacedPictures, VisionTower, mrope
from tests.conftest import make_vision_model
from tests.rollout.engines.vision_models import load, picture_request


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    make_vision_model(found)
    return found


@pytest.fixture
def tower(path: Path) -> VisionTower:
    return VisionTower(*load(path))


def place(tower: VisionTower, *sizes: tuple[int, int], first: int = 0) -> PlacedPictures:
    placed = tower.place(picture_request(tower._processor, *sizes, first=first))
    assert placed is not None
    return placed


def test_a_prompt_of_text_has_none(tower: VisionTower) -> None:
    assert tower.place(picture_request(tower._processor)) is None


def test_requests_with_the_same_files_share_their_pictures(tower: VisionTower) -> None:
    one, same, other = place(tower, (24, 16)), place(tower, (24, 16)), place(tower, (24, 16), first=1)
    assert one.pictures[0] is same.pictures[0]
    assert one.pictures[0] is not other.pictures[0]
    assert one.digests != other.digests


def test_a_turn_encodes_the_pictures_that_no_turn_before_it_had(tower: VisionTower) -> None:
    first, second = place(tower, (24, 16)), place(tower, (24, 16), (8, 8), (16, 8))
    assert first.pictures[0] is second.pictures[0]
    with torch.inference_mode():
        tower.see([first])
        assert tower.num_encoded == 1
        seen = tower.see([second])
        assert tower.num_encoded == 3
        tower.forget()
        torch.testing.assert_close(tower.see([second]).embeddings, seen.embeddings)


def test_pictures_are_forgotten_after_their_last_request_and_a_few_others(tower: VisionTower) -> None:
    place(tower, (8, 8), first=99)
    for first in range(RECENT):
        assert len(tower._live) == first + 1
        place(tower, (8, 8), first=first)
    assert len(tower._live) == RECENT


def test_features_are_those_of_each_prompt_in_order(tower: VisionTower) -> None:
    one, two = place(tower, (24, 16)), place(tower, (8, 8), (16, 8))
    with torch.inference_mode():
        both, alone = tower.see([one, None, two]), tower.see([two])
    assert both.embeddings.shape == (6 + 1 + 2, 32)
    assert torch.equal(both.embeddings[6:], alone.embeddings)
    assert [torch.equal(a[6:], b) for a, b in zip(both.deepstack, alone.deepstack, strict=True)] == [True, True]
    assert tower.num_encoded == 3


def test_pictures_are_encoded_again_after_new_weights_alone(tower: VisionTower) -> None:
    placed = place(tower, (24, 16))
    with torch.inference_mode():
        first = tower.see([placed])
        tower.see([placed, placed])
        assert tower.num_encoded == 1
        tower.forget()
        torch.testing.assert_close(tower.see([placed]).embeddings, first.embeddings)
    assert tower.num_encoded == 2


def test_positions_go_on_behind_the_prompt(tower: VisionTower) -> None:
    request = picture_request(tower._processor, (24, 16))
    longer = replace(request, prompt_ids=[*request.prompt_ids, 5, 6, 7])
    placed, expected = tower.place(request), tower.place(longer)
    assert placed is not None
    assert expected is not None
    length = len(longer.prompt_ids)
    rows = mrope([None, placed], length, torch.device("cpu"))
    assert rows[:, 0].tolist() == [list(range(length))] * 3
    assert rows[:, 1].tolist() == expected.positions.tolist()
    assert mrope([placed], 4, torch.device("cpu"))[:, 0].tolist() == expected.positions[:, :4].tolist()
