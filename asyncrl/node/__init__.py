"""Composition root: the only package that knows all roles. One module assembles each role; `process` runs it."""
