"""Both ends of a transfer around a tape: what the sender moves is recorded, and played to the receiver."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.contents.delta import Form
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import Channel, Sent, receive, send
from asyncrl.weights.staging import Staging
from tests.weights.party import PLAN, SPECS, tensors

CPU = torch.device("cpu")
SUM = Checksum(CPU)


class Recorder(Channel):
    """The sender's end."""

    def __init__(self) -> None:
        self.tape: list[Tensor] = []

    def move(self, tensor: Tensor) -> None:
        if tensor.numel():
            self.tape.append(tensor.clone())


class Player(Channel):
    """A receiver's end: sizes that differ would end the process of a real one."""

    def __init__(self, tape: list[Tensor]) -> None:
        self._tape = iter(tape)

    def move(self, tensor: Tensor) -> None:
        if tensor.numel():
            sent = next(self._tape)
            assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
            tensor.copy_(sent)

    def is_over(self) -> bool:
        return next(self._tape, None) is None


def staged(weights: Mapping[str, Tensor]) -> Staging:
    staging = Staging(PLAN, CPU)
    for name, tensor in weights.items():
        staging.tensors[name].copy_(tensor)
    return staging


def record(new: Staging, base: Staging | None = None, *, checked: bool = True) -> tuple[list[Tensor], Sent]:
    recorder, sent = Recorder(), Sent()
    send(recorder, PLAN, new, base=base, checksum=SUM if checked else None, sent=sent)
    return recorder.tape, sent


def play(
    tape: list[Tensor],
    into: Staging,
    *,
    is_delta: bool = False,
    checked: bool = True,
    on_bucket: Callable[[Mapping[str, Tensor]], None] = lambda _: None,
) -> None:
    player = Player(tape)
    checksum = SUM if checked else None
    receive(player, PLAN, into, is_delta=is_delta, checksum=checksum, on_bucket=on_bucket)
    assert player.is_over()


def same(ours: Staging, theirs: Staging) -> bool:
    return all(torch.equal(*pair) for pair in zip(ours.buckets, theirs.buckets, strict=True))


@pytest.mark.parametrize("checked", [False, True])
def test_whole_buckets_arrive(checked: bool) -> None:
    new, received = staged(tensors(1)), Staging(PLAN, CPU)
    tape, sent = record(new, checked=checked)
    play(tape, received, checked=checked)

    assert same(received, new)
    assert (sent.num_bytes, sent.num_changed) == (PLAN.num_bytes, 0)


def test_deltas_arrive_and_say_how_much_moved() -> None:
    base, received = staged(tensors(1)), staged(tensors(1))
    weights = tensors(1)
    weights["embed"][2, 1] = 9.0
    weights["norm"][3] = 9.0
    new = staged(weights)
    tape, sent = record(new, base)
    play(tape, received, is_delta=True)

    assert same(received, new)
    assert sent.num_changed == 2
    assert sent.num_bytes == (4 + 1) + (2 + 1)  # A value and a gap each.


def test_a_bucket_of_which_all_changed_travels_whole() -> None:
    base, received, new = staged(tensors(1)), staged(tensors(1)), staged(tensors(2))
    tape, sent = record(new, base)
    play(tape, received, is_delta=True)

    assert same(received, new)
    assert tape[0].tolist() == [Form.FULL, PLAN.buckets[0].num_bytes]
    assert sent.num_bytes <= PLAN.num_bytes


def test_damage_on_the_way_names_the_bucket_and_both_checksums() -> None:
    new = staged(tensors(1))
    tape, _ = record(new)
    tape[1][0] ^= 1
    theirs, ours = (SUM.of(buffer) % (1 << 64) for buffer in (new.buckets[1], tape[1]))
    first = PLAN.buckets[1].slots[0].spec.name

    sentence = f"bucket 1 of 2, which begins with {first}, is damaged: its checksum is {ours:016x}, .* {theirs:016x}"
    with pytest.raises(TransferError, match=sentence):
        play(tape, Staging(PLAN, CPU))


def test_a_delta_upon_another_base_is_found_by_the_checksum_of_the_result() -> None:
    tape, _ = record(staged(tensors(1)), staged(tensors(1)))
    with pytest.raises(TransferError, match="bucket 0 of 2, which begins with adapter, is damaged"):
        play(tape, staged(tensors(3)), is_delta=True)


@pytest.mark.parametrize(("form", "num_bytes"), [(7, 4), (Form.GAPS, -1), (Form.BITMAP, 1 << 40), (Form.FULL, 4)])
def test_a_size_that_cannot_be_is_refused_before_it_is_allocated(form: int, num_bytes: int) -> None:
    tape = [torch.tensor([form, num_bytes])]
    with pytest.raises(TransferError, match=f"of form {int(form)} and {num_bytes} bytes"):
        play(tape, staged(tensors(1)), is_delta=True)


def test_buckets_are_handed_over_in_the_plans_order_out_of_one_buffer() -> None:
    order: list[str] = []
    copied: dict[str, Tensor] = {}

    def take(views: Mapping[str, Tensor]) -> None:
        order.extend(views)
        copied.update({name: view.clone() for name, view in views.items()})

    tape, _ = record(staged(tensors(1)))
    play(tape, Staging(PLAN, CPU, holds="bucket"), on_bucket=take)

    assert order == [spec.name for spec in PLAN.specs]
    assert all(torch.equal(copied[name], tensor) for name, tensor in tensors(1).items())


def test_a_plan_without_bytes_needs_no_collective() -> None:
    empty = Layout([spec for spec in SPECS if spec.name == "adapter"], 64)
    staging, recorder = Staging(empty, CPU), Recorder()
    send(recorder, empty, staging, base=None, checksum=None, sent=Sent())

    assert recorder.tape == []
