"""
A whole run on one virtual clock: a seed does the same things whenever it is run, and a promise that breaks is replayed.

    python -m tests.simulation --seeds 0:20000      one JSON line; at the first failure exit code 1 and how to replay it
    python -m tests.simulation --seed 1234          that schedule again, and what happens in it
    python -m tests.simulation --mutant lost_ack    with a bug planted

Real, in every schedule: the actors of broker, spool, rollout, reward and trainer, the rules, sessions, `ZmqLink` and
`ZmqHub`, greetings, beats, `through_restarts`, replay and audit. Simulated: sockets and wires, disks, threads, clocks,
processes and their deaths; an engine, a verifier, a learner and a collective that do no arithmetic.

    plan      what the seed decides               world       processes, started again when they end
    faults    what goes wrong meanwhile           invariants, record_rules     what holds all the same
    wire, ledger, segments, checkpoints, transfers, engine, virtual_time       what stands in for the rest
"""
