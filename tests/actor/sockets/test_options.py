import zmq

from asyncrl.actor.sockets.options import new_socket


def test_a_socket_refuses_larger_frames_and_has_no_heartbeat_that_could_abort_the_process() -> None:
    context = zmq.Context()
    socket = new_socket(context, zmq.DEALER, 1000)
    assert socket.getsockopt(zmq.MAXMSGSIZE) == 1000
    assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
    assert socket.getsockopt(zmq.TCP_KEEPALIVE) == 1
    socket.close()
    context.term()
