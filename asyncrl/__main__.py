"""``python -m asyncrl``, and the command `asyncrl`."""

import sys

INTERRUPTED = 130
"""Exit code of programs that SIGINT ends."""


def main() -> None:
    """Run the command line; Ctrl-C is one sentence while it is still being imported, too."""
    try:
        from asyncrl.cli.main import main as commands  # noqa: PLC0415  takes a moment

        commands()
    except KeyboardInterrupt:
        sys.stderr.write("asyncrl: interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
