"""Policy losses: one file for each, what they are given (`tokens`), and their names (`table`)."""
