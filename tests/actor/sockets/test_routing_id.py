from asyncrl.actor.sockets.routing_id import peer_name, routing_id


def test_the_name_is_in_the_routing_id_and_the_rest_cannot_be_guessed() -> None:
    first, second = routing_id("rollout-0.18ea"), routing_id("rollout-0.18ea")
    assert peer_name(first) == peer_name(second) == "rollout-0.18ea"
    assert first != second
    assert len(first) >= len("rollout-0.18ea") + 16


def test_a_stranger_is_called_by_its_whole_routing_id() -> None:
    assert peer_name(b"stranger") == "stranger"
    assert peer_name(b"\xff") == "\N{REPLACEMENT CHARACTER}"
