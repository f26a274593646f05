"""All settings of a run file, a file for each section or two; the docstring of a field is its reference page."""
