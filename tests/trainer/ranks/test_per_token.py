import numpy as np

from asyncrl.trainer.ranks.per_token import shared
from asyncrl.trainer.ranks.ranks import Alone

LENGTHS, OWNER = [2, 0, 3, 1], [1, 0, 0, 1]
VALUES = {
    "logprobs": [np.array(part, np.float32) for part in ([0.1, 0.2], [], [0.3, 0.4, 0.5], [0.6])],
    "values": [np.array(part, np.float32) for part in ([1.0, 2.0], [], [3.0, 4.0, 5.0], [6.0])],
}


class Both:
    """Two ranks, asked one after the other: the second time, both have said what they know."""

    size, mesh = 2, None

    def __init__(self) -> None:
        self.rank = 0
        self.said = [b"", b""]

    def gather(self, said: bytes) -> list[bytes]:
        self.said[self.rank] = said
        return self.said


def of_rank(rank: int) -> dict[str, dict[int, np.ndarray]]:
    return {name: {i: parts[i] for i in range(4) if OWNER[i] == rank} for name, parts in VALUES.items()}


def test_every_rank_gets_what_all_ranks_know_in_the_order_of_the_step() -> None:
    ranks = Both()
    ranks.said[1] = b"".join(VALUES[name][i].tobytes() for name in sorted(VALUES) for i in (0, 3))
    found = shared(of_rank(0), lengths=LENGTHS, owner=OWNER, ranks=ranks)

    for name, parts in VALUES.items():
        assert [part.tolist() for part in found[name]] == [part.astype(np.float64).tolist() for part in parts]


def test_alone_everything_is_ones_own() -> None:
    own = {name: dict(enumerate(parts)) for name, parts in VALUES.items()}
    found = shared(own, lengths=LENGTHS, owner=[0] * 4, ranks=Alone())
    assert [part.dtype for part in found["values"]] == [np.float64] * 4
    assert found["values"][2].tolist() == [3.0, 4.0, 5.0]
