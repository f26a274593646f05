import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import ConfigError
from asyncrl.weights.contents.layout import ALIGN_BYTES, ITEM_BYTES, Layout, TensorSpec

SPEC = st.builds(
    TensorSpec,
    name=st.text("abc.", min_size=1, max_size=6),
    shape=st.lists(st.integers(0, 40), max_size=3).map(tuple),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
)
SPECS = st.lists(SPEC, max_size=20, unique_by=lambda spec: spec.name)


def spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype)


@given(SPECS, st.integers(1, 4096))
def test_every_tensor_lies_in_one_bucket_once(specs: list[TensorSpec], bucket_bytes: int) -> None:
    layout = Layout(specs, bucket_bytes)

    assert [slot.spec for bucket in layout.buckets for slot in bucket.slots] == sorted(specs)


@given(SPECS, st.integers(1, 4096))
def test_slots_are_aligned_and_disjoint_and_inside_their_bucket(specs: list[TensorSpec], bucket_bytes: int) -> None:
    for bucket in Layout(specs, bucket_bytes).buckets:
        end = 0
        for slot in bucket.slots:
            assert slot.offset % ALIGN_BYTES == 0
            assert slot.offset >= end
            end = slot.offset + slot.spec.num_bytes
        assert end == bucket.num_bytes


@given(SPECS, st.integers(1, 4096))
def test_only_a_single_tensor_makes_a_bucket_larger_than_allowed(specs: list[TensorSpec], bucket_bytes: int) -> None:
    for bucket in Layout(specs, bucket_bytes).buckets:
        assert bucket.num_bytes <= bucket_bytes or len(bucket.slots) == 1


@given(SPECS.flatmap(lambda specs: st.tuples(st.just(specs), st.permutations(specs))))
def test_the_order_of_the_specs_does_not_matter(pair: tuple[list[TensorSpec], list[TensorSpec]]) -> None:
    first, second = (Layout(specs, 256) for specs in pair)

    assert first.hash == second.hash
    assert first.buckets == second.buckets
    assert first.difference(pair[1]) is None


@given(SPECS, SPECS)
def test_hashes_are_equal_exactly_if_there_is_no_difference(ours: list[TensorSpec], theirs: list[TensorSpec]) -> None:
    assert (Layout(ours, 256).hash == Layout(theirs, 256).hash) == (Layout(ours, 256).difference(theirs) is None)


def test_the_hash_covers_the_bucket_size_because_the_layout_does() -> None:
    assert Layout([spec("a", 4)], 64).hash != Layout([spec("a", 4)], 128).hash


def test_a_layout_worked_by_hand() -> None:
    """a: 3 floats, 12 bytes. b starts at 16 and ends at 22. c would end at 48 > 40, so it opens a bucket."""
    layout = Layout([spec("c", 4), spec("a", 3), spec("b", 3, dtype="bfloat16")], 40)

    assert [[(slot.spec.name, slot.offset) for slot in b.slots] for b in layout.buckets] == [
        [("a", 0), ("b", 16)],
        [("c", 0)],
    ]
    assert [bucket.num_bytes for bucket in layout.buckets] == [22, 16]
    assert layout.num_bytes == 38


@given(SPECS, st.integers(1, 4096))
def test_buckets_are_whole_numbers_of_their_smallest_element(specs: list[TensorSpec], bucket_bytes: int) -> None:
    layout = Layout(specs, bucket_bytes)

    assert all(bucket.num_bytes % bucket.item_bytes == 0 for bucket in layout.buckets)
    assert layout.num_items >= sum(spec.num_bytes // ITEM_BYTES[spec.dtype] for spec in specs)


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        pytest.param([spec("a", 2)], "b is in the layout, but the other side does not have it", id="missing"),
        pytest.param(
            [spec("a", 2), spec("b", 3), spec("c", 1)], "c is not in the layout, but the other side has it", id="extra"
        ),
        pytest.param(
            [spec("a", 2), spec("b", 4)], "b has shape (3,) in the layout, but (4,) on the other side", id="shape"
        ),
        pytest.param(
            [spec("a", 2, dtype="bfloat16"), spec("b", 4)],
            "a has dtype float32 in the layout, but bfloat16 on the other side",
            id="the first of two",
        ),
    ],
)
def test_the_first_difference_is_reported_in_one_sentence(theirs: list[TensorSpec], sentence: str) -> None:
    assert Layout([spec("a", 2), spec("b", 3)], 64).difference(theirs) == sentence


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([spec("a", 1), spec("a", 2)], "a is listed twice"),
        ([spec("a", 1, dtype="complex256")], "a has dtype 'complex256'"),
        ([spec("a", -1)], r"a has shape \(-1,\)"),
    ],
)
def test_specs_that_cannot_be_laid_out_are_refused(specs: list[TensorSpec], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Layout(specs, 64)
