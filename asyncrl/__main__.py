"""``python -m asyncrl``."""

from asyncrl.cli.main import main

main()
