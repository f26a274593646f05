"""Policy losses, a file for each. `tokens` has their input and output, `table` resolves names."""
