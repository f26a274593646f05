"""Marks of pictures in prompts, and the tokens that take their place."""

import pytest

from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Image, Prompt
from asyncrl.vision.picture import check_marks, collapse, expand, marked_chat, marked_text

PAD = 99
IMAGE = Image(digest=bytes(32), width=8, height=8, num_bytes=100)


def test_every_mark_in_a_text_becomes_the_placeholder() -> None:
    assert marked_text("a <image><image> b", "[P]") == "a [P][P] b"


def test_a_chat_becomes_parts_in_order() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<image>How many <image>?"}]
    assert marked_chat(chat) == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "image"},
                {"type": "text", "text": "How many "},
                {"type": "image"},
                {"type": "text", "text": "?"},
            ],
        },
    ]


@pytest.mark.parametrize("num_images", [1, 3])
def test_marks_and_pictures_must_be_as_many(num_images: int) -> None:
    prompt = Prompt(chat=[{"role": "user", "content": "<image> and <image>"}], images=[IMAGE] * num_images)
    with pytest.raises(DataError, match=rf"has {num_images} pictures, but 2 marks <image>"):
        check_marks(prompt)


def test_a_prompt_without_pictures_may_write_the_mark() -> None:
    check_marks(Prompt(text="the tag <image> of HTML"))
    check_marks(Prompt(text="<image>", images=[IMAGE]))


def test_expanded_ids_have_a_token_for_each_part_of_a_picture() -> None:
    collapsed = [1, PAD, 2, PAD, 3]
    expanded = expand(collapsed, [3, 1], PAD)
    assert expanded == [1, PAD, PAD, PAD, 2, PAD, 3]
    assert collapse(expanded, [3, 1], PAD) == collapsed


def test_adjacent_pictures_are_told_apart_by_their_counts() -> None:
    assert collapse([PAD] * 5, [3, 2], PAD) == [PAD, PAD]


def test_a_text_that_spells_the_token_of_a_picture_is_refused() -> None:
    with pytest.raises(DataError, match=r"has 2 tokens for pictures \(id 99\) after tokenization, but 1 pictures"):
        expand([PAD, PAD], [4], PAD)


def test_ids_with_other_counts_are_refused() -> None:
    with pytest.raises(DataError, match="have 4 tokens by their files, but the prompt has 3"):
        collapse([PAD] * 3, [4], PAD)
