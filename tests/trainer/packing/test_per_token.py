import numpy as np

from asyncrl.trainer.packing.step import all_gather_per_token
from asyncrl.trainer.ranks.ranks import SingleRank

LENGTHS, OWNERS = [2, 0, 3, 1], [1, 0, 0, 1]
VALUES = {
    "logprobs": [np.array(part, np.float32) for part in ([0.1, 0.2], [], [0.3, 0.4, 0.5], [0.6])],
    "values": [np.array(part, np.float32) for part in ([1.0, 2.0], [], [3.0, 4.0, 5.0], [6.0])],
}


class Both(SingleRank):
    """Two ranks, asked one after the other: the second time, both have sent what they know."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.rank = 0
        self.sent = [b"", b""]

    def all_gather(self, sent: bytes) -> list[bytes]:
        self.sent[self.rank] = sent
        return self.sent


def of_rank(rank: int) -> dict[str, dict[int, np.ndarray]]:
    return {name: {i: parts[i] for i in range(4) if OWNERS[i] == rank} for name, parts in VALUES.items()}


def test_every_rank_gets_the_numbers_of_all_ranks_in_the_order_of_the_step() -> None:
    ranks = Both()
    ranks.sent[1] = b"".join(VALUES[name][i].tobytes() for name in sorted(VALUES) for i in (0, 3))
    found = all_gather_per_token(of_rank(0), lengths=LENGTHS, owners=OWNERS, ranks=ranks)

    for name, parts in VALUES.items():
        assert [part.tolist() for part in found[name]] == [part.astype(np.float64).tolist() for part in parts]


def test_a_single_rank_gets_its_own_numbers() -> None:
    own = {name: dict(enumerate(parts)) for name, parts in VALUES.items()}
    found = all_gather_per_token(own, lengths=LENGTHS, owners=[0] * 4, ranks=SingleRank())
    assert [part.dtype for part in found["values"]] == [np.float64] * 4
    assert found["values"][2].tolist() == [3.0, 4.0, 5.0]
