"""
What a cluster would do, before anybody rents it: the broker's own rules under a clock that does not wait.

    plan file ─▶ lengths, speeds ─▶ simulated rollouts, reward, trainer ◀── messages ──▶ the real Scheduler
                                          └─▶ Outcome: step time, idle shares, staleness ─▶ table, picture
"""
