"""Suites with networks of eight units on a generated maze of 2,000 rows. `--plugin` loads this file."""

from __future__ import annotations

from aspc.experiments.suites import Block, Suite, Variant, register

MAZE = "maze2d-umaze?steps=2000"
OTHER_MAZE = "maze2d-umaze?steps=2000&seed=1"
SMALL = {"actor_hidden_dim": 8, "critic_hidden_dim": 8, "batch_size": 8}
OPTIONS = {"eval_every": 500, "eval_episodes": 1, "log_every": 500, "checkpoint_every": 500}
STEPS = 2_000

ASPC = Variant("ASPC", "aspc", SMALL)
TD3_BC = Variant("TD3+BC", "td3_bc", SMALL)
HIGH_ALPHA = Variant("TD3+BC, alpha = 5", "td3_bc", {**SMALL, "alpha": 5.0})
CONVERGED = Variant("converged", "aspc", {**SMALL, "scale_mode": "converged"}, scale_of=ASPC)
DIVERGING = Variant("diverging", "td3_bc", {**SMALL, "critic_lr": 1e30})


def block(variants: tuple[Variant, ...], datasets: tuple[str, ...], seeds: int = 2) -> Block:
    return Block(variants, datasets, STEPS, seeds, OPTIONS)


register(Suite("tiny", "two algorithms", "tests", (block((TD3_BC, ASPC), (MAZE, OTHER_MAZE)),)))
register(Suite("tiny_shared", "the same runs and others", "tests", (block((HIGH_ALPHA, TD3_BC), (MAZE,), 1),)))
register(Suite("tiny_stages", "a scale from another run", "tests", (block((CONVERGED, ASPC), (MAZE,), 1),)))
register(Suite("tiny_failing", "one run diverges", "tests", (block((TD3_BC, DIVERGING), (MAZE,), 1),)))
register(Suite("tiny_files", "a folder's files", "tests", (block((TD3_BC,), (), 1),), every_file=True))
register(Suite("tiny_both", "two suites as one", "tests", parts=("tiny", "tiny_shared")))
