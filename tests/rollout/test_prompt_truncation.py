import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import PromptTooLong
from asyncrl.messages.words import Truncation
from asyncrl.rollout.prompt_truncation import fit

TEN = list(range(10))


@pytest.mark.parametrize(
    ("truncation", "max_tokens", "kept"),
    [
        ("left", 5, [5, 6, 7, 8, 9]),
        ("right", 5, [0, 1, 2, 3, 4]),
        ("middle", 5, [0, 1, 7, 8, 9]),
        ("middle", 4, [0, 1, 8, 9]),
        ("middle", 1, [9]),
        ("left", 1, [9]),
        ("right", 1, [0]),
    ],
)
def test_what_is_kept(truncation: Truncation, max_tokens: int, kept: list[int]) -> None:
    assert fit(TEN, max_tokens, truncation) == kept


def test_nothing_is_cut_where_that_is_an_error() -> None:
    with pytest.raises(
        PromptTooLong, match=r"the prompt has 10 tokens, more than data\.max_prompt_tokens = 9"
    ) as caught:
        fit(TEN, 9, "error")
    assert not caught.value.retryable


@pytest.mark.parametrize("truncation", ["left", "right", "middle", "error"])
def test_a_prompt_with_pictures_is_not_cut(truncation: Truncation) -> None:
    assert fit(TEN, 10, truncation, has_images=True) == TEN
    with pytest.raises(PromptTooLong, match=r"10 tokens with its pictures, .* and pictures cannot be truncated"):
        fit(TEN, 9, truncation, has_images=True)


@given(st.lists(st.integers(0, 99), max_size=40), st.integers(1, 40), st.sampled_from(["left", "right", "middle"]))
def test_a_prompt_has_exactly_as_many_tokens_as_fit(ids: list[int], most: int, truncation: Truncation) -> None:
    kept = fit(ids, most, truncation)

    assert len(kept) == min(len(ids), most)
    assert kept == ids or len(ids) > most


@given(st.lists(st.integers(0, 99), max_size=20), st.sampled_from(["error", "left", "right", "middle"]))
def test_a_prompt_that_fits_is_left_alone(ids: list[int], truncation: Truncation) -> None:
    assert fit(ids, max(len(ids), 1), truncation) == ids
