"""Train and evaluate a policy on a generated U-maze dataset: `make demo`.

All settings are the paper's, except for those that the script prints.
"""

import datetime
import sys

from aspc.__main__ import main

STEPS, SEEDS, ALPHA = 16_000, (0, 1), 10.0

print(f"Training ASPC on a generated U-maze for {STEPS:,} steps (the paper: 1,000,000) with {len(SEEDS)} seeds.")
print(f"The scale alpha starts at {ALPHA:g} instead of 2.5. On mazes, alpha rises, but only slowly from 2.5.")
print("All other hyperparameters are the paper's. This takes two to four minutes on two cores.", flush=True)
options = {
    "--steps": [str(STEPS)],
    "--seeds": [str(seed) for seed in SEEDS],
    "--alpha": [str(ALPHA)],
    "--eval-every": ["4000"],
    "--final-episodes": ["50"],
    "--out": [f"runs/demo-{datetime.datetime.now():%Y%m%d-%H%M%S}"],
}
sys.exit(main(["train", "maze2d-umaze", *(word for name, values in options.items() for word in (name, *values))]))
