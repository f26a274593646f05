"""Size of the vocabulary of an engine or a policy, which may tell it by an attribute, and need not."""


def vocab_size_of(holder: object) -> int:
    """Attribute ``vocab_size`` of an engine or a policy; 0, which is unknown, if it has none."""
    size = getattr(holder, "vocab_size", 0)
    return size if isinstance(size, int) and size > 0 else 0
