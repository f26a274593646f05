"""
Templates: fixed pieces of text with gaps between them.

    <think>...</think>...\\boxed{...}...         three dots are a gap, of any length and over any number of lines

Searching for fixed pieces takes time proportional to the text; an equivalent regular expression could take exponential
time on a hostile text.
"""

GAP = "..."


def fits(template: str, text: str) -> bool:
    """Return True if the text is the template with any text, or none, in each gap."""
    first, *rest = template.split(GAP)
    if not rest:
        return text == template
    *middle, last = rest
    begin, end = len(first), len(text) - len(last)
    if begin > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:  # the leftmost place leaves most room for the next pieces
        found = text.find(piece, begin, end)
        if found < 0:
            return False
        begin = found + len(piece)
    return True


def has_each_once(template: str, text: str) -> bool:
    """Return True if no piece occurs in the text more often than in the template."""
    pieces = {piece for piece in template.split(GAP) if piece}
    return all(text.count(piece) <= template.count(piece) for piece in pieces)
