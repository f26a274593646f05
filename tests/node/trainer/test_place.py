from asyncrl.messages.trainer import TrainerMachine
from asyncrl.node.trainer.place import Place, only_machine

MACHINES = [TrainerMachine("a", "host-a"), TrainerMachine("b", "host-b")]


def test_ranks_are_numbered_over_the_machines_in_their_order() -> None:
    place = Place(MACHINES, 1, 2)

    assert (place.size, list(place.own)) == (4, [2, 3])
    assert place.names == ["a-rank-0", "a-rank-1", "b-rank-2", "b-rank-3"]
    assert place.labels[2] == "b-rank-2 on host-b"


def test_one_machine_has_all_ranks() -> None:
    place = only_machine("t", 3)
    assert (place.size, list(place.own), place.names[2]) == (3, [0, 1, 2], "t-rank-2")
