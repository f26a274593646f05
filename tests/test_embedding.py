"""A rollout embedded in a web service leaves no handler, thread, task or setting behind."""

import subprocess
import sys
import textwrap

HOST = textwrap.dedent(
    '''
    """A web service that also runs a rollout."""

    import asyncio
    import contextlib
    import logging
    import signal
    import sys
    import threading

    import structlog
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from asyncrl.wire.memory import MemoryHub
    from asyncrl.wire.handshake import Connection
    from asyncrl.wire.handshake import Identity
    from asyncrl.wire.spools import SpoolLinks
    from asyncrl.messages.rollout import Lease, Leased, Offer, Settled
    from asyncrl.messages.session import Ready
    from asyncrl.messages.spool import Put, SpoolAddress, SpoolSet
    from asyncrl.messages.trajectory import Prompt, Sampling, Span, Trajectory, Unit
    from asyncrl.rollout.actor import RolloutActor
    from asyncrl.engine import Completion

    import msgspec


    class HostEngine:
        """Completes every prompt with its reverse."""

        def encode(self, prompt):
            return list(prompt.text.encode())

        def decode(self, token_ids):
            return bytes(token_ids).decode()

        def specs(self):
            return []

        async def generate(self, request):
            ids = request.prompt_ids[::-1]
            return Completion(
                completion_ids=ids,
                behavior_logprobs=[0.0] * len(ids),
                spans=[Span(0, 0, len(ids))],
                finish_reason="stop",
                generate_s=0.0,
            )

        async def pause(self): ...
        async def swap(self, policy_version, weights): ...
        async def resume(self): ...
        async def aclose(self): ...


    broker, spool = MemoryHub(), MemoryHub()
    tasks_left = []


    @contextlib.asynccontextmanager
    async def lifespan(app):
        before = asyncio.all_tasks()
        identity = Identity("rollout", "host", "1")
        spools = SpoolLinks(lambda _: spool.connect("host"), SpoolSet([SpoolAddress("spool", "memory")], "spool"))
        actor = RolloutActor(HostEngine(), Connection(identity, broker.connect("host"), spools))
        rolling_out = asyncio.create_task(actor.run())
        yield
        rolling_out.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await rolling_out
        # The test client also starts tasks.
        tasks_left.extend(t for t in asyncio.all_tasks() - before if not t.get_name().startswith("anyio"))


    app = FastAPI(lifespan=lifespan)


    @app.get("/roll")
    async def roll(text: str) -> dict[str, str]:
        """Lease one prompt as a broker does, and wait for its completion."""
        lease = Lease(
            lease_id=1, group_id=0, indices=[0], split="train", prompt=Prompt(text=text),
            sampling=Sampling(max_tokens=8), seed=0, max_prompt_tokens=64, expires_in_s=60.0,
        )
        broker.send("host", lease)
        _, put = await spool.receive()
        broker.send("host", Settled([Leased(Unit(0, 0), 1)]))
        return {"completion": msgspec.msgpack.decode(put.items[0].payload, type=Trajectory).text}


    def fingerprint():
        return {
            "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
            "wakeup fd": signal.set_wakeup_fd(-1),
            "threads": {thread.name for thread in threading.enumerate()},
            "root handlers": list(logging.root.handlers),
            "root level": logging.root.level,
            "loggers": {name for name in logging.root.manager.loggerDict if name.startswith("asyncrl")},
            "structlog": structlog.get_config(),
            "structlog is configured": structlog.is_configured(),
            "event loop policy": type(asyncio.get_event_loop_policy()),
            "excepthook": sys.excepthook,
        }


    with TestClient(app):
        pass  # first use of the framework itself, which may leave changes
    broker.forget("host")
    spool.forget("host")

    before = fingerprint()
    with TestClient(app) as client:
        assert client.get("/roll", params={"text": "abc"}).json() == {"completion": "cba"}
        assert client.get("/roll", params={"text": "stressed"}).json() == {"completion": "desserts"}
    after = fingerprint()

    for name in before:
        assert before[name] == after[name], (name, before[name], after[name])
    assert not tasks_left, tasks_left
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    assert "uvloop" not in sys.modules, "the host chooses the event loop"
    print("nothing left behind")
    '''
)


def test_a_rollout_in_a_web_service_leaves_nothing_behind(tmp_path):
    """The host runs in a fresh interpreter, without the imports and handlers of other tests."""
    (tmp_path / "host.py").write_text(HOST)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", tmp_path / "host.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("nothing left behind", 0), done.stderr
