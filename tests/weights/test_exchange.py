import threading
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from asyncrl.errors import TransferError
from asyncrl.weights.contents.delta import Form
from asyncrl.weights.contents.header import NO_VERSION, Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.exchange import Channel, Copies, SendStats, receive, send
from asyncrl.weights.staging import Staging
from tests.weights.party import LAYOUT, SPECS, tensors

CPU = torch.device("cpu")


def copies(*versions: int, keeps_base: bool = False) -> Copies:
    made = Copies(LAYOUT, CPU, keeps_base=keeps_base)
    for version in versions:
        write(made, version)
    return made


def write(copies: Copies, version: int) -> None:
    with copies.write(version) as staging:
        for bucket in staging.buckets:
            bucket.fill_(version)


def held(copies: Copies, version: int) -> bool:
    with copies.read(version) as staging:
        return staging is not None and all(bool((bucket == version).all()) for bucket in staging.buckets)


def test_the_two_newest_versions_are_there() -> None:
    three = copies(1, 2, 3)

    assert [held(three, version) for version in (1, 2, 3)] == [False, True, True]
    assert three.newest == 3


def test_there_is_nothing_before_the_first() -> None:
    assert copies().newest == NO_VERSION
    with copies().read(NO_VERSION) as staging:
        assert staging is None


def test_the_next_version_is_written_while_one_moves() -> None:
    one = copies(1)
    with one.read(1) as moving:
        write(one, 2)
        assert moving is not None
        assert all(bool((bucket == 1).all()) for bucket in moving.buckets)

    assert held(one, 2)


@pytest.mark.parametrize("keeps_base", [False, True])
def test_a_version_is_written_over_only_when_it_has_moved(keeps_base: bool) -> None:
    """The writer has to wait: the other copies hold the newest and the kept version."""
    some = copies(1, keeps_base=keeps_base)
    if keeps_base:
        some.keep(1)
        write(some, 2)
    moving = some.newest
    with some.read(moving):
        write(some, moving + 1)
        writer = threading.Thread(target=write, args=(some, moving + 2))
        writer.start()
        while writer.is_alive() and not some._changed._waiters:  # type: ignore[attr-defined]
            pass
        assert writer.is_alive()
        assert held(some, moving)
    writer.join()

    assert held(some, moving + 2)


def test_a_kept_version_stays_until_another_is_kept() -> None:
    some = copies(1, keeps_base=True)
    some.keep(1)
    for version in (2, 3, 4):
        write(some, version)
    assert held(some, 1)
    assert not held(some, 2)

    some.keep(4)
    write(some, 5)
    write(some, 6)
    assert [held(some, version) for version in (1, 4, 5, 6)] == [False, True, True, True]
    kept = some.kept()
    assert kept is not None
    assert kept[0] == 4


def test_an_interrupted_write_makes_no_version() -> None:
    one = copies(1)
    with pytest.raises(RuntimeError), one.write(2):
        raise RuntimeError("the model is gone")

    assert one.newest == 1
    assert held(one, 1)
    assert not held(one, 2)
    write(one, 3)
    assert held(one, 1)


# ── test exchange ─────────────────────────────────────────────────────────────────────────────
# Both ends of a transfer without a group: the sender's broadcasts are recorded, and played to the receiver.

SUM = Checksum(CPU)


class Recorder(Channel):
    def __init__(self) -> None:
        self.tape: list[Tensor] = []

    def broadcast(self, tensor: Tensor) -> None:
        if tensor.numel():
            self.tape.append(tensor.clone())


class Player(Channel):
    """Asserts equal sizes: in a real collective, different sizes end the process."""

    def __init__(self, tape: list[Tensor]) -> None:
        self._tape = iter(tape)

    def broadcast(self, tensor: Tensor) -> None:
        if tensor.numel():
            sent = next(self._tape)
            assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
            tensor.copy_(sent)

    def is_over(self) -> bool:
        return next(self._tape, None) is None


def staged(weights: Mapping[str, Tensor]) -> Staging:
    staging = Staging(LAYOUT, CPU)
    for name, tensor in weights.items():
        staging.tensors[name].copy_(tensor)
    return staging


def record(new: Staging, base: Staging | None = None, *, checked: bool = True) -> tuple[list[Tensor], SendStats]:
    recorder, sent = Recorder(), SendStats()
    bases = base.buckets if base else None
    send(recorder, new.layout, new.buckets, base=bases, checksum=SUM if checked else None, stats=sent)
    return recorder.tape, sent


def play(tape: list[Tensor], into: Staging, *, is_delta: bool = False, checked: bool = True) -> None:
    player = Player(tape)
    receive(player, into.layout, into.buckets, is_delta=is_delta, checksum=SUM if checked else None)
    assert player.is_over()


def same(ours: Staging, theirs: Staging) -> bool:
    return all(torch.equal(*pair) for pair in zip(ours.buckets, theirs.buckets, strict=True))


@pytest.mark.parametrize("checked", [False, True])
def test_whole_buckets_arrive(checked: bool) -> None:
    new, received = staged(tensors(1)), Staging(LAYOUT, CPU)
    tape, sent = record(new, checked=checked)
    play(tape, received, checked=checked)

    assert same(received, new)
    assert (sent.num_bytes, sent.num_changed) == (LAYOUT.num_bytes, 0)


def test_deltas_arrive_and_the_sent_bytes_are_counted() -> None:
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


def test_a_bucket_that_changed_everywhere_is_sent_whole() -> None:
    base, received, new = staged(tensors(1)), staged(tensors(1)), staged(tensors(2))
    tape, sent = record(new, base)
    play(tape, received, is_delta=True)

    assert same(received, new)
    assert tape[0].tolist() == [Form.FULL, LAYOUT.buckets[0].num_bytes]
    assert sent.num_bytes <= LAYOUT.num_bytes


def test_damage_on_the_way_names_the_bucket_and_both_checksums() -> None:
    new = staged(tensors(1))
    tape, _ = record(new)
    tape[1][0] ^= 1
    theirs, ours = (SUM(buffer) % (1 << 64) for buffer in (new.buckets[1], tape[1]))
    first = LAYOUT.buckets[1].slots[0].spec.name

    sentence = f"bucket 1 of 2, which begins with {first}, is damaged: its checksum is {ours:016x}, .* {theirs:016x}"
    with pytest.raises(TransferError, match=sentence):
        play(tape, Staging(LAYOUT, CPU))


def test_a_delta_upon_another_base_is_found_by_the_checksum_of_the_result() -> None:
    tape, _ = record(staged(tensors(1)), staged(tensors(1)))
    with pytest.raises(TransferError, match="bucket 0 of 2, which begins with adapter, is damaged"):
        play(tape, staged(tensors(3)), is_delta=True)


@pytest.mark.parametrize(("form", "num_bytes"), [(7, 4), (Form.GAPS, -1), (Form.BITMAP, 1 << 40), (Form.FULL, 4)])
def test_a_size_that_cannot_be_is_refused_before_it_is_allocated(form: int, num_bytes: int) -> None:
    tape = [torch.tensor([form, num_bytes])]
    with pytest.raises(TransferError, match=f"of form {int(form)} and {num_bytes} bytes"):
        play(tape, staged(tensors(1)), is_delta=True)


def test_a_bucket_is_complete_when_the_next_one_is_asked_for() -> None:
    """So one buffer is enough, if its content is taken meanwhile."""
    one, taken = Staging(LAYOUT, CPU, holds="bucket"), []

    def buckets() -> Iterator[Tensor]:
        for bucket in one.buckets:
            yield bucket
            taken.append(bucket.clone())

    new = staged(tensors(1))
    tape, _ = record(new)
    receive(Player(tape), LAYOUT, buckets(), is_delta=False, checksum=SUM)

    assert all(torch.equal(*pair) for pair in zip(taken, new.buckets, strict=True))


def test_a_layout_without_bytes_needs_no_collective() -> None:
    empty = Layout([spec for spec in SPECS if spec.name == "adapter"], 64)
    staging, recorder = Staging(empty, CPU), Recorder()
    send(recorder, staging.layout, staging.buckets, base=None, checksum=None, stats=SendStats())

    assert recorder.tape == []
