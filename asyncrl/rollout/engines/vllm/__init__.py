"""
vLLM as an engine.

    node process                                 vLLM's engine core        workers
    engine ─▶ adapter ─ requests, calls ───────▶ schedules ──────────────▶ the model, with `worker` mixed in
       ▲         ◀──── tokens, log-probs ─────────┘                            ▲
       ├─ relay ◀──── rendezvous and transfer messages ── channel ─────────────┤   weights come from the trainer,
       └─ shared memory ───────────────────────── mapped at a swap ────────────┘   or the node has fetched them

This file is empty because a worker imports only a part of the package.
"""
