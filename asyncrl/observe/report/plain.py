"""Plain text in a page."""

from html import escape

from asyncrl.foreign_text import shown_lines


def plain(text: str) -> str:
    """HTML of a text, for a place between two tags or in an attribute: neither HTML in it acts, nor anything else."""
    return escape(shown_lines(text))
