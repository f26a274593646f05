"""
Prediction of a cluster before it is rented: the broker's own scheduler with simulated nodes, under virtual time.

    plan file ─▶ lengths, speeds ─▶ simulated rollouts, reward, trainer ◀── messages ──▶ the real Scheduler
                                          └─▶ SimulationResult: step time, idle shares, staleness ─▶ table, HTML page
"""
