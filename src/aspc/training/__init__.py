"""Training: the compiled loop, run folders, checkpoints and evaluation. No module depends on a specific algorithm."""
