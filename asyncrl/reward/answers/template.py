"""
Text with gaps: whether a text has the pieces of a template, in order.

    <think>...</think>...\\boxed{...}...         three dots are a gap, of any length and over any number of lines

A search for fixed pieces takes time in proportion to the text, whatever it is; a regular expression for the same may
take for ever on a text that was made for it.
"""

GAP = "..."


def fits(template: str, text: str) -> bool:
    """Whether the text is the template, with something, or nothing, in each gap."""
    first, *rest = template.split(GAP)
    if not rest:
        return text == template
    *middle, last = rest
    begin, end = len(first), len(text) - len(last)
    if begin > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:  # The leftmost place of each leaves most room for those that follow.
        found = text.find(piece, begin, end)
        if found < 0:
            return False
        begin = found + len(piece)
    return True


def has_each_once(template: str, text: str) -> bool:
    """Whether no piece occurs in the text more often than in the template."""
    pieces = {piece for piece in template.split(GAP) if piece}
    return all(text.count(piece) <= template.count(piece) for piece in pieces)
