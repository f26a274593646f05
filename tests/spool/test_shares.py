from asyncrl.spool.shares import Shares


def test_one_node_alone_may_use_the_whole_disk() -> None:
    shares = Shares()
    shares.stored("a", 0, 1000)
    assert shares.allows("a", 1000, free_bytes=lambda: 10)


def test_of_several_nodes_none_holds_more_than_half() -> None:
    shares = Shares()
    shares.stored("a", 0, 400)
    shares.stored("b", 0, 100)
    assert shares.allows("a", 100, free_bytes=lambda: 500)
    assert not shares.allows("a", 101, free_bytes=lambda: 500)
    assert shares.allows("b", 400, free_bytes=lambda: 500)


def test_what_is_trimmed_is_free_again() -> None:
    shares = Shares()
    shares.stored("a", 0, 500)
    shares.stored("a", 1, 10)
    shares.stored("b", 1, 10)
    assert not shares.allows("a", 1, free_bytes=lambda: 400)
    shares.trimmed(1)
    assert shares.allows("a", 200, free_bytes=lambda: 400)
