import time
from collections.abc import Callable

import zmq

from asyncrl.wire.curve import hub_keys_of, link_keys_of, secure_hub, secure_link
from asyncrl.wire.zmq_link import ConnectionMonitor, ConnectionRefusal

DEADLINE_S = 30.0
SECRET, OTHER = bytes(32), bytes([1] * 32)


def until(is_true: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := is_true()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return found


def test_a_peer_with_another_secret_is_noticed_until_one_with_the_same_answers() -> None:
    context = zmq.Context()
    hub, link = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    secure_hub(hub, "tcp://", hub_keys_of(SECRET))
    address = f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}"
    secure_link(link, address, link_keys_of(OTHER))
    monitor = ConnectionMonitor(link)
    link.connect(address)
    assert monitor.refusal() is None
    assert until(lambda: monitor.refusal() is ConnectionRefusal.HUB)
    link.disconnect(address)
    secure_link(link, address, link_keys_of(SECRET))
    link.connect(address)
    assert until(lambda: monitor.refusal() is None)
    monitor.close()
    monitor.close()
    context.destroy(linger=0)


def test_a_peer_without_keys_is_noticed() -> None:
    context = zmq.Context()
    hub, link = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    address = f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}"
    secure_link(link, address, link_keys_of(SECRET))
    monitor = ConnectionMonitor(link)
    link.connect(address)
    assert until(lambda: monitor.refusal() is ConnectionRefusal.HUB)
    monitor.close()
    context.destroy(linger=0)
