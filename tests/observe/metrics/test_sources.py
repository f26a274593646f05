"""A scrape reads the actors that run, and nothing of a process that serves no metrics."""

import asyncio

from asyncrl.observe.metrics.sources import Sources, collect_in, read_from
from asyncrl.observe.metrics.table import Sample

SLOTS = Sample("asyncrl_rollout_slots", 8)
PAYLOADS = Sample("asyncrl_spool_payloads", 3)


def test_what_runs_is_read_until_it_ends():
    async def main():
        sources = Sources()
        collect_in(sources)
        with read_from(lambda: [SLOTS]):
            with read_from(lambda: [PAYLOADS]):
                both = list(sources)
            one = list(sources)
        return both, one, list(sources)

    assert asyncio.run(main()) == ([SLOTS, PAYLOADS], [SLOTS], [])


def test_tasks_of_the_process_add_to_its_sources():
    async def actor(until: asyncio.Event):
        with read_from(lambda: [SLOTS]):
            await until.wait()

    async def main():
        sources, until = Sources(), asyncio.Event()
        collect_in(sources)
        running = asyncio.create_task(actor(until))
        await asyncio.sleep(0)
        during = list(sources)
        until.set()
        await running
        return during, list(sources)

    assert asyncio.run(main()) == ([SLOTS], [])


def test_without_sources_an_actor_runs_and_is_not_read():
    def source():
        raise AssertionError("nobody asked")

    with read_from(source):
        pass
