from asyncrl.messages.trajectory import Span
from asyncrl.rollout.engine import Completion
from asyncrl.rollout.engines.masks import Masks

RESUMED = Completion(
    completion_ids=[8],
    behavior_logprobs=[-0.5],
    spans=[Span(3, 0, 1)],
    finish_reason="unfinished",
    generate_s=1.0,
    mask_counts=[2],
    mask_ids=[8, 9],
)


def test_masks_follow_those_of_the_completion_it_resumes_from() -> None:
    masks = Masks(RESUMED)
    masks.add([1, 5, 7])

    assert (masks.counts, masks.ids) == ([2, 3], [8, 9, 1, 5, 7])
    assert RESUMED.mask_ids == [8, 9], "it is borrowed"


def test_without_masks_a_completion_has_none() -> None:
    assert (Masks().counts, Masks().ids) == ([], [])
