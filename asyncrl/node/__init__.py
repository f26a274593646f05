"""
The composition root: the only place that knows all roles. One file builds each role from its parts; `process` runs it.

Hosts that embed an actor need nothing from here.
"""
