"""asyncrl: an actor runtime for asynchronous reinforcement-learning post-training of language models."""
