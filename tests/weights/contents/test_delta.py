import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents.delta import REACH, WORDS, Form, apply, encode

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]
NAN_PAYLOADS = (0x7FC00001, 0x7FC00002)


def pair(data: st.DataObject, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two buckets of random bits, of which a drawn share differs."""
    bits = WORDS[dtype.itemsize]
    num, seed = data.draw(st.integers(0, 3000)), data.draw(st.integers(0, 2**31))
    share = data.draw(st.sampled_from([0.0, 0.0005, 0.02, 0.1, 0.5, 0.95, 1.0]))
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(bits)
    base = torch.randint(info.min, info.max, (num,), dtype=bits, generator=generator)
    changed = torch.rand(num, generator=generator) < share
    new = torch.where(changed, base ^ (1 << data.draw(st.integers(0, 8 * dtype.itemsize - 2))), base)
    return new.view(torch.uint8), base.view(torch.uint8)


@given(st.data(), st.sampled_from(DTYPES))
def test_the_base_and_its_delta_make_the_new_bucket_bit_for_bit(data: st.DataObject, dtype: torch.dtype) -> None:
    new, base = pair(data, dtype)
    delta = encode(new, base, dtype.itemsize)
    words = WORDS[dtype.itemsize]

    assert delta.num_changed == int((new.view(words) != base.view(words)).sum())
    if delta.form is Form.FULL:
        assert torch.equal(delta.payload, new)
    else:
        apply(delta.form, delta.payload, base, dtype.itemsize)
        assert torch.equal(base, new)


@given(st.data(), st.sampled_from(DTYPES))
def test_a_delta_is_no_larger_than_a_bitmap_or_it_is_the_bucket(data: st.DataObject, dtype: torch.dtype) -> None:
    new, base = pair(data, dtype)
    delta = encode(new, base, dtype.itemsize)
    num = len(new) // dtype.itemsize

    if delta.form is Form.FULL:
        assert delta.payload is new
    else:
        assert len(delta.payload) <= min(len(new) / 2, -(-num // 8) + delta.num_changed * dtype.itemsize)


@pytest.mark.parametrize(("dtype", "payloads"), [(torch.float32, NAN_PAYLOADS), (torch.bfloat16, (0x7FC1, 0x7FC2))])
def test_nans_keep_their_payload_and_zeros_their_sign(dtype: torch.dtype, payloads: tuple[int, int]) -> None:
    words = WORDS[dtype.itemsize]
    nans = torch.tensor(payloads, dtype=words)
    base = torch.cat([torch.tensor([0.0, 1.0], dtype=dtype).view(words), nans[:1], torch.zeros(99, dtype=words)])
    new = base.clone()
    new[0] = torch.tensor(-0.0, dtype=dtype).view(words)
    new[2] = nans[1]

    delta = encode(new.view(torch.uint8), base.view(torch.uint8), dtype.itemsize)
    apply(delta.form, delta.payload, base.view(torch.uint8), dtype.itemsize)

    assert (delta.form, delta.num_changed) == (Form.GAPS, 2)
    assert torch.equal(base, new)


def test_gaps_worked_by_hand() -> None:
    """Elements 1 and 4 change: one is passed over before the first, two before the second."""
    base = torch.zeros(99, dtype=torch.uint8)
    new = base.clone()
    new[1], new[4] = 7, 9

    assert encode(new, base, 1).payload.tolist() == [7, 9, 1, 2]


def test_a_bitmap_worked_by_hand() -> None:
    """Elements 0, 2 and 9 of ten: bits 0 and 2 of the first byte, bit 1 of the second."""
    base = torch.zeros(20, dtype=torch.uint8)
    new = base.clone()
    new.view(torch.int16)[[0, 2, 9]] = torch.tensor([1, 2, 3], dtype=torch.int16)

    delta = encode(new, base, 2)

    assert delta.form is Form.BITMAP
    assert delta.payload.tolist() == [1, 0, 2, 0, 3, 0, 0b101, 0b10]


def test_nothing_changed_is_nothing_sent() -> None:
    bucket = torch.arange(100, dtype=torch.uint8)

    assert len(encode(bucket, bucket.clone(), 2).payload) == 0


@pytest.mark.parametrize(
    ("where", "num_sent"),
    [([0], 1), ([REACH - 1], 1), ([REACH], 2), ([0, REACH], 2), ([0, REACH + 1], 3), ([5, 5 + 3 * REACH], 4)],
)
def test_wide_gaps_are_bridged_by_unchanged_elements(where: list[int], num_sent: int) -> None:
    base = torch.full((4 * REACH,), 5, dtype=torch.uint8)
    new = base.clone()
    new[where] = 6

    delta = encode(new, base, 1)
    apply(delta.form, delta.payload, base, 1)

    assert (len(delta.payload), delta.num_changed) == (2 * num_sent, len(where))
    assert torch.equal(base, new)


@pytest.mark.parametrize(
    ("form", "payload"),
    [
        pytest.param(Form.GAPS, [1, 0, 9, 9], id="gaps beyond the end"),
        pytest.param(Form.GAPS, [1, 0, 2, 0], id="gaps cut off"),
        pytest.param(Form.BITMAP, [1, 0, 2, 0, 1, 0], id="more values than bits"),
        pytest.param(Form.BITMAP, [1], id="bits cut off"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_and_nothing_is_written(form: Form, payload: list[int]) -> None:
    bucket = torch.zeros(20, dtype=torch.uint8)
    with pytest.raises(TransferError, match=f"a {form.name.lower()} delta of {len(payload)} bytes does not fit"):
        apply(form, torch.tensor(payload, dtype=torch.uint8), bucket, 2)

    assert not bucket.any()
