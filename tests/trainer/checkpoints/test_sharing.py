"""All machines of a trainer resume from the newest checkpoint that one of them has, without a shared file system."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from asyncrl.errors import LedgerError
from asyncrl.trainer.checkpoints import checkpoint, writer
from asyncrl.trainer.checkpoints.checkpoint import CheckpointSearch, verify
from asyncrl.trainer.checkpoints.writer import newest_of_all
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.ranks.ranks import ALONE, SingleRank
from tests.trainer.checkpoints.writing import write


class Exchange:
    """Bytes between ranks, which are threads here."""

    def __init__(self, size: int) -> None:
        self.sent: list[bytes] = [b""] * size
        self.barrier = threading.Barrier(size, timeout=20)


class ThreadRank:
    """One of several `Ranks`, as strict as a process group: each call is an exchange that all ranks take part in."""

    mesh = None
    sequence = ALONE
    device = torch.device("cpu")

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self.rank = rank
        self.size = len(exchange.sent)
        self._exchange = exchange

    def all_gather(self, data: bytes) -> list[bytes]:
        self._exchange.sent[self.rank] = data
        self._exchange.barrier.wait()
        received = list(self._exchange.sent)
        self._exchange.barrier.wait()
        return received

    def broadcast(self, data: bytes, source: int) -> bytes:
        return self.all_gather(data)[source]


def on_all(folders: list[Path], readers: list[bool] | None = None, keep: int = 0) -> list[Path | None]:
    """Result on each rank, given the checkpoint folder of its machine."""
    exchange = Exchange(len(folders))

    def find(rank: int) -> Path | None:
        is_reader = readers is None or readers[rank]
        try:
            return newest_of_all(folders[rank], ThreadRank(rank, exchange), is_reader=is_reader, keep=keep).folder
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(len(folders)) as threads:
        return list(threads.map(find, range(len(folders))))


Save = Callable[[Path, int], Path]


@pytest.fixture
def save(model_path, config, tokenizer) -> Save:
    snapshot = Learner(config(), model_path).snapshot()

    def save(directory: Path, step: int, policy_version: int = 0) -> Path:
        return write(
            directory, step=step, policy_version=policy_version, frontier={}, snapshot=snapshot, tokenizer=tokenizer
        )

    return save


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHUNK_BYTES", 1000)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_run_has_none(tmp_path: Path) -> None:
    assert on_all([tmp_path / "a", tmp_path / "b"]) == [None, None]
    assert newest_of_all(tmp_path / "none", SingleRank(), is_reader=True) == (None, [])


def test_a_machine_without_it_gets_every_file_of_the_newest(tmp_path: Path, save: Save) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 2)
    newest = save(a, 4)
    save(b, 3)

    assert on_all([b, a]) == [b / "step_000004", newest], "the first rank is not the one that has it"
    assert contents(b / "step_000004") == contents(newest)
    assert verify(b / "step_000004").step == 4
    assert sorted(path.name for path in b.iterdir()) == ["step_000003", "step_000004"]


def test_a_machine_that_got_a_copy_keeps_no_more_than_it_should(tmp_path: Path, save: Save) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for step in (1, 2, 4):
        save(a, step)
    for step in (1, 2, 3):
        save(b, step)

    on_all([a, b], keep=2)
    assert sorted(path.name for path in b.iterdir()) == ["step_000003", "step_000004"]
    assert len(list(a.iterdir())) == 3, "its writer prunes it"


def test_of_two_checkpoints_of_one_step_all_take_the_same(tmp_path: Path, save) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 4, 4)
    save(b, 4, 5)

    on_all([a, b])

    assert contents(a / "step_000004") == contents(b / "step_000004")
    assert verify(b / "step_000004").policy_version == 4


def test_ranks_of_one_machine_read_and_copy_once(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def search(folder: Path) -> CheckpointSearch:
        read.append(folder)
        return checkpoint.search(folder)

    monkeypatch.setattr(writer, "search", search)
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 2)

    assert on_all([a, a, b, b], [True, False, True, False]) == [*[a / "step_000002"] * 2, *[b / "step_000002"] * 2]
    assert sorted(read) == [a, b]


def test_a_shared_file_system_is_left_alone(tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 2)
    monkeypatch.setattr(writer, "_copy", None)
    assert on_all([tmp_path, tmp_path]) == [tmp_path / "step_000002"] * 2


def test_a_damaged_checkpoint_is_replaced_by_the_intact_one_of_another_machine(tmp_path: Path, save: Save) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    (save(a, 4) / "model.safetensors").write_bytes(b"damaged")
    intact = save(b, 4)

    on_all([a, b])
    assert contents(a / "step_000004") == contents(intact)


def test_the_damaged_checkpoints_of_all_machines_are_named_once_on_each_rank(tmp_path: Path, save: Save) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        save(folder, 2)
        (save(folder, 4) / "model.safetensors").write_bytes(b"damaged")
    exchange = Exchange(3)

    def find(rank: int) -> writer.Newest:
        return newest_of_all((a, b, b)[rank], ThreadRank(rank, exchange), is_reader=True)

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(find, range(3)))

    assert [newest.folder for newest in found] == [folder / "step_000002" for folder in (a, b, b)]
    assert [[one.checkpoint for one in newest.damaged] for newest in found] == [
        [str(folder / "step_000004") for folder in (a, b)]
    ] * 3


def test_a_copy_that_differs_from_what_was_written_is_refused(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    save(a, 2)
    monkeypatch.setattr(ThreadRank, "broadcast", lambda self, data, source: self.all_gather(data)[source][:999])
    with pytest.raises((LedgerError, ValueError, threading.BrokenBarrierError)):
        on_all([a, b])
    assert not (b / "step_000002").exists()
