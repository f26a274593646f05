"""Imported by every Python process that has this folder on its path: records settings and updates if asked to."""

import os
from pathlib import Path

if folder := os.environ.get("ASYNCRL_READS"):
    from tests.conf.recipes.recording import install

    install(Path(folder))

if folder := os.environ.get("ASYNCRL_UPDATES"):
    from tests.conf.recipes.updates import install as install_updates

    install_updates(Path(folder))
