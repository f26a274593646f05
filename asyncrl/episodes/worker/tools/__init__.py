"""Tools that every policy may be given, by their names in ``environment.tools``."""


class ToolFailure(Exception):
    """The tool itself is out of order: the episode fails and is tried again, instead of teaching the policy."""
