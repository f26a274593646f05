"""``python -m asyncrl``, and the commands `asyncrl` and `asyncrl-node`."""

import sys
from importlib import import_module

INTERRUPTED = 130
"""Exit code of programs that SIGINT ends."""


def main() -> None:
    """Run the command line."""
    _run("asyncrl.cli.main")


def node() -> None:
    """Run one role of a run."""
    _run("asyncrl.cli.node")


def _run(module: str) -> None:
    """Call ``main`` of a module; Ctrl-C is one sentence while it is still being imported, too, which takes a moment."""
    try:
        import_module(module).main()
    except KeyboardInterrupt:
        sys.stderr.write("asyncrl: interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
