"""The main job on the embedded default: a generated U-maze dataset in, an evaluated policy out. `make demo` runs it.

It trains ASPC as the paper sets it, with one change, which it says: a short run.
"""

import datetime
import sys

from aspc.__main__ import main

STEPS = 16_000

print(f"Training ASPC on a generated U-maze: {STEPS:,} steps (the paper trains 1,000,000).")
print("Every other hyper-parameter is the paper's. This takes two to four minutes on two cores.", flush=True)
folder = f"runs/demo-{datetime.datetime.now():%Y%m%d-%H%M%S}"
options = ["--steps", str(STEPS), "--eval-every", "4000", "--final-episodes", "50", "--out", folder]
sys.exit(main(["train", "maze2d-umaze", *options]))
