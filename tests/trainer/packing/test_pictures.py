"""Pictures of packed rows: prompts with other pictures are other prompts, and equal pictures are read once."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from asyncrl.errors import DataError
from asyncrl.trainer.algorithm.mini_batch import as_context, in_untrained_turns
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.pictures import PictureTokens, TrainingImage
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SequenceGroup
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import make_vision_model
from tests.trainer.episode_trajectories import episode
from tests.trainer.pictured_trajectories import pictured_trajectories, prompt_with, training_image

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def processor(tmp_path_factory) -> ImageProcessor:
    path = tmp_path_factory.mktemp("model")
    make_vision_model(path)
    found = ImageProcessor.load(path)
    assert found
    return found


def trajectory(processor: ImageProcessor, images: list[TrainingImage], completion: list[int]) -> TrainingTrajectory:
    ids = np.array(completion, np.int32)
    return TrainingTrajectory(
        0, prompt_with(processor, images), ids, np.zeros(len(ids), np.float32), 1.0, images=images
    )


def packed(processor: ImageProcessor, *trajectories: TrainingTrajectory, group=None) -> MicroBatch:
    return collate(trajectories, device=CPU, processor=processor, group=group or SequenceGroup())


def test_two_pictures_with_one_question_do_not_share_a_prompt(processor: ImageProcessor) -> None:
    first, second = training_image(processor, 0), training_image(processor, 4)
    one, other = (trajectory(processor, [image], [3, 4]) for image in (first, second))
    assert first.grid == second.grid
    assert np.array_equal(one.prompt_ids, other.prompt_ids)

    length, before = len(one.prompt_ids), 3
    assert one.prompt_ids[before - 1] == processor.placeholder_ids[0], "the text before the picture is shared"
    assert packed(processor, one, other).num_packed == 2 * (length + 1) - before
    assert packed(processor, one, trajectory(processor, [first], [5, 4])).num_packed == length + 2
    both = packed(processor, one, other).pictures
    assert both is not None
    assert both.tokens.tolist() == [*range(2 * processor.num_tokens(first.grid))]


def test_one_picture_of_two_questions_is_read_once(processor: ImageProcessor) -> None:
    image = training_image(processor)
    one = trajectory(processor, [image], [3, 4])
    before, after = (replace(one, prompt_ids=np.insert(one.prompt_ids, at, 5)) for at in (0, len(one.prompt_ids)))
    pictures = packed(processor, one, before, after).pictures

    assert pictures is not None
    assert pictures.grids.tolist() == [list(image.grid)]
    assert torch.equal(pictures.pixels, processor.pixels([image.content]).values)
    assert pictures.tokens.tolist() == 2 * [*range(processor.num_tokens(image.grid))], "the end has another question"


def test_positions_are_those_of_each_sequence_alone(processor: ImageProcessor) -> None:
    trajectories = pictured_trajectories(processor)
    batch = packed(processor, *trajectories)
    assert batch.position_ids.shape == (3, 1, batch.num_packed)

    ends = np.cumsum(batch.row.lengths)
    found = {
        (tuple(batch.input_ids[0, at].tolist()), tuple(batch.position_ids[:, 0, at].flatten().tolist()))
        for at in np.split(batch.row.sequences.indices.numpy(), ends[:-1])
    }
    expected = set()
    for one in trajectories:
        ids = np.concatenate((one.prompt_ids, one.completion_ids[:-1]))
        positions, _ = processor.positions(ids, [image.grid for image in one.images])
        expected.add((tuple(ids.tolist()), tuple(positions.flatten().tolist())))
    assert found == expected


def episode_with(processor: ImageProcessor, image: TrainingImage, *context: int) -> TrainingTrajectory:
    """Two turns after a prompt with a picture, and one after nothing."""
    one = episode([(-1, context, [3, 4]), (0, [5], [6]), (-2, [7, 8], [9])])
    return replace(one, prompt_ids=prompt_with(processor, [image]), images=[image])


def test_turns_go_on_behind_the_pictures_of_the_prompt_and_others_begin_at_position_0(
    processor: ImageProcessor,
) -> None:
    image = training_image(processor)
    one = episode_with(processor, image, 2)
    batch, length = packed(processor, one), len(one.prompt_ids)

    after = int(PictureTokens(processor).positions(one.prompt_ids, [image])[0, -1]) + 1
    assert after < length
    assert batch.position_ids[:, 0, length:].tolist() == [[*range(after, after + 4), 0, 1]] * 3
    assert batch.input_ids[0, length:].tolist() == [2, 3, 4, 5, 7, 8]
    assert batch.pictures is not None
    assert len(batch.pictures.tokens) == processor.num_tokens(image.grid)


def test_a_context_with_a_token_of_pictures_and_none_is_refused(processor: ImageProcessor) -> None:
    with pytest.raises(DataError, match="context of an episode has the token 26, which stands for pictures, but no"):
        packed(processor, episode_with(processor, training_image(processor), processor.image_token_id))


def shown(processor: ImageProcessor, image: TrainingImage) -> list[int]:
    start, pad, end = processor.placeholder_ids
    return [start, *[pad] * processor.num_tokens(image.grid), end, 7]


def test_branches_share_what_they_have_read_up_to_the_first_other_picture(processor: ImageProcessor) -> None:
    """Turns 1 and 2 answer turn 0 after pictures of one size, and turn 3 reads the first one again, after nothing."""
    first, second = training_image(processor, 0), training_image(processor, 4)
    look, other = shown(processor, first), shown(processor, second)
    assert look == other
    made = episode([(-1, [], [3, 4]), (0, look, [5]), (0, other, [5]), (-2, look, [6, 9])])
    numbers = [0, 1, 1, 1]
    turns = [msgspec.structs.replace(turn, num_images=num) for turn, num in zip(made.turns, numbers, strict=True)]
    one = replace(made, turns=turns, images=[first, second, first])
    batch = packed(processor, one)

    alone, after_text = len(made.prompt_ids) + 2, len(look) - 1
    assert batch.num_packed == alone + 1 + 2 * after_text + len(look) + 1
    pictures, num = batch.pictures, processor.num_tokens(first.grid)
    assert pictures is not None
    assert pictures.grids.tolist() == [list(first.grid), list(second.grid)], "each is read once"
    assert pictures.tokens.tolist() == [*range(2 * num), *range(num)]
    assert batch.input_ids[0, -2:].tolist() == [7, 6]
    start = batch.num_packed - len(look) - 1
    assert batch.position_ids[:, 0, start].tolist() == [0, 0, 0], "what follows nothing begins at position 0"


def test_a_picture_that_nobody_read_before_a_trained_token_is_left_out(processor: ImageProcessor) -> None:
    image = training_image(processor)
    made = episode([(-1, [], [3, 4]), (0, shown(processor, image), [5])])
    turns = [made.turns[0], msgspec.structs.replace(made.turns[1], num_images=1, is_trained=False)]
    one = replace(made, turns=turns, images=[image])
    left = as_context(one, in_untrained_turns(one))
    assert [turn.num_images for turn in left.turns] == [0, 1]
    assert packed(processor, left).pictures is None
    assert packed(processor, one).pictures is not None


def test_a_row_of_text_has_one_position_for_each_token(processor: ImageProcessor) -> None:
    batch = packed(processor, trajectory(processor, [], [3, 4, 5]))
    assert batch.position_ids.tolist() == [[0, 1, 2, 3]]
    assert batch.pictures is None


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_a_row_read_the_pictures_of_their_parts(processor: ImageProcessor, size: int) -> None:
    trajectories = pictured_trajectories(processor)
    whole = packed(processor, *trajectories)
    parts = [packed(processor, *trajectories, group=SequenceGroup(size, index)) for index in range(size)]

    joined = torch.cat([part.position_ids for part in parts], -1)
    assert torch.equal(joined[..., : whole.num_packed], whole.position_ids)
    shown = [features(part) for part in parts if part.pictures]
    assert torch.equal(torch.cat(shown), features(whole))
    for part in parts:
        num_tokens = int((part.input_ids == processor.image_token_id).sum())
        assert num_tokens == (0 if part.pictures is None else len(part.pictures.tokens))


def features(batch: MicroBatch) -> torch.Tensor:
    """A stand-in for the tower: the merged patches themselves, for each token of a picture."""
    assert batch.pictures is not None
    return batch.pictures.pixels.view(-1, 4 * batch.pictures.pixels.shape[1])[batch.pictures.tokens]


def test_a_grid_other_than_the_sampler_s_stops_with_a_sentence(processor: ImageProcessor) -> None:
    image = training_image(processor)
    turned = replace(image, grid=(1, image.grid[2], image.grid[1]), processor="pillow 3")
    with pytest.raises(
        DataError, match=r"\(1, 6, 4\) patches .* 'pillow 3', but this trainer cuts it into \(1, 4, 6\) with 'pillow"
    ):
        packed(processor, trajectory(processor, [turned], [3]))


def test_pictures_for_a_model_that_reads_none_are_refused(processor: ImageProcessor) -> None:
    with pytest.raises(DataError, match="group 0 has 1 pictures, but the model reads none"):
        collate([trajectory(processor, [training_image(processor)], [3])], device=CPU)


def test_a_sampled_token_of_pictures_is_refused(processor: ImageProcessor) -> None:
    with pytest.raises(DataError, match="has the token 26, which stands for pictures and is never sampled"):
        packed(processor, trajectory(processor, [], [3, processor.image_token_id]))


def test_a_prompt_that_spells_a_picture_it_does_not_have_is_refused(processor: ImageProcessor) -> None:
    one = trajectory(processor, [training_image(processor)], [3])
    with pytest.raises(DataError, match="have 0 tokens by their files, but the prompt has 6"):
        packed(processor, replace(one, images=[]))
