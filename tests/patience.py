"""Time limit of what a slow test waits for. Only one that hangs reaches it, however busy the machine is."""

PATIENCE_S = 300.0
