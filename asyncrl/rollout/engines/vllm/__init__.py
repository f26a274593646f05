"""
vLLM as an engine.

    node's process                               vLLM's engine core        its workers
    engine ─▶ adapter ─ requests, calls ───────▶ schedules ──────────────▶ the model, `worker` mixed in
       ▲         ◀──── tokens, log-probs ─────────┘                            ▲
       └─ relay ◀──── rendezvous and announcements ── channel ─────────────────┘   weights come from the trainer

Empty: a worker imports a part of it, and should not load the other half.
"""
