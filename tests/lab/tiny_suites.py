"""Suites with networks of eight units on a generated maze of 2,000 rows. `--plugin` loads this file."""

from __future__ import annotations

from aspc.lab.suites import Block, Suite, Variant, register

MAZE = "maze2d-umaze?steps=2000"
OTHER_MAZE = "maze2d-umaze?steps=2000&seed=1"
SMALL_ACTOR = {"actor_hidden_dim": 8, "batch_size": 8}
SMALL = {**SMALL_ACTOR, "critic_hidden_dim": 8}
OPTIONS = {"eval_every": 500, "eval_episodes": 1, "log_every": 500, "checkpoint_every": 500}
STEPS = 4_000

# Compilation takes most of the time of these tests, so they use BC unless they need another algorithm.
BC = Variant("BC", "bc", SMALL_ACTOR)
FAST_BC = Variant("BC, fast", "bc", {**SMALL_ACTOR, "actor_lr": 1e-3})
DIVERGING = Variant("BC, diverging", "bc", {**SMALL_ACTOR, "actor_lr": 1e38})
ASPC = Variant("ASPC", "aspc", SMALL)
CONVERGED = Variant("converged", "aspc", {**SMALL, "scale_mode": "converged"}, scale_of=ASPC)


def block(variants: tuple[Variant, ...], datasets: tuple[str, ...], seeds: int = 2) -> Block:
    return Block(variants, datasets, STEPS, seeds, OPTIONS)


register(Suite("tiny", "two algorithms", "tests", (block((BC, ASPC), (MAZE, OTHER_MAZE)),)))
register(Suite("tiny_again", "some of the same runs", "tests", (block((BC,), (MAZE,)),)))
register(Suite("tiny_shared", "the same runs and others", "tests", (block((FAST_BC, BC), (MAZE,), 1),)))
register(Suite("tiny_stages", "a scale from another run", "tests", (block((CONVERGED, ASPC), (MAZE,)),)))
register(Suite("tiny_failing", "one run diverges", "tests", (block((FAST_BC, DIVERGING), (MAZE,), 1),)))
register(Suite("tiny_files", "a folder's files", "tests", (block((BC,), (), 1),), every_file=True))
register(Suite("tiny_both", "two suites as one", "tests", parts=("tiny", "tiny_shared")))
