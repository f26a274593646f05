"""Messages between nodes, a file for each subject; wire.py lists them by receiver."""
