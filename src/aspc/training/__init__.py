"""Training: the compiled loop, run folders, checkpoints and evaluation. No module here knows an algorithm by name."""
