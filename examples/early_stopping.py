"""Stop training when the runs have not improved for several chunks of steps.

    aspc train maze2d-umaze --holdout 0.1 --callback examples/early_stopping.py

With `--holdout`, the criterion is the held-out BC loss. Otherwise, it is the mean return of the latest evaluation.
"""

import math
from statistics import fmean

import aspc

LOSS = "valid_bc_loss"


def quality(run):
    """Return a number that is larger for better runs, or −∞ if there are no results yet."""
    return -run.metrics[LOSS] if LOSS in run.metrics else run.evaluation.get("return_mean", -math.inf)


class EarlyStopping(aspc.Callback):
    def __init__(self, patience=10):
        self.patience, self.best, self.waited = patience, -math.inf, 0

    def on_chunk(self, event):
        value = fmean(quality(run) for run in event.runs)
        self.waited = 0 if value > self.best or value == -math.inf else self.waited + 1
        self.best = max(self.best, value)
        if self.waited >= self.patience:
            event.stop(f"no improvement in {self.patience} chunks")
