"""Training: the compiled loop, run folders, checkpoints, evaluation. Knows no algorithm by name."""
