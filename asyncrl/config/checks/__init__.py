"""Checks of a configuration across its sections: errors, and advice."""
