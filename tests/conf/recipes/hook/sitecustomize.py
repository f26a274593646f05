"""Imported by every Python process that has this folder on its path: records reads of settings if asked to."""

import os
from pathlib import Path

if folder := os.environ.get("ASYNCRL_READS"):
    from tests.conf.recipes.recording import install

    install(Path(folder))
