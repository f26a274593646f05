"""Version of asyncrl, which an installation and a source tree that is only on the path have alike."""

VERSION = "0.1.0"
"""setuptools reads it from here."""
