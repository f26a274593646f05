"""
An OpenAI-compatible endpoint for each episode, so that any agent program trains unchanged.

    agent program ── POST /e/<capability>/v1/chat/completions ─▶ OpenEpisode ─▶ Lineage ─▶ Conversation ─▶ engine
                  ── PUT  /e/<capability>/reward ──────────────▶ the program's word on the episode

It is the same episode with somebody else's loop: every reply is a turn of the record, and what the program says next is
found in the tree of turns by the messages that it sends back, never by encoding a reply again.
"""
