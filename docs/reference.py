"""Hooks of MkDocs: the pages that are made from the package, and links into the repository."""

from importlib import import_module
from typing import Any

from asyncrl.tools.examples import pages, without_links_elsewhere


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages to the site."""
    File = import_module("mkdocs.structure.files").File  # noqa: N806  a class
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links into the repository, which the site does not contain, into plain names of files."""
    return without_links_elsewhere(markdown)
