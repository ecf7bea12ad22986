"""Suites with networks of eight units on a generated maze of 2,000 rows. `--plugin` loads this file."""

from __future__ import annotations

from typing import Any

import jax

from aspc.authoring import init_apply, register_network
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
CUSTOM = Variant("BC, own network", "bc", {"actor": "tiny_sine", "batch_size": 8})
CONVERGED = Variant("converged", "aspc", {**SMALL, "scale_mode": "converged"}, scale_of=ASPC)


def init_sine(key: Any, in_size: int, out_size: int) -> Any:
    return jax.random.normal(key, (in_size, out_size))


def apply_sine(weight: Any, x: Any) -> Any:
    return jax.numpy.sin(x @ weight)


register_network("tiny_sine")(init_apply(init_sine, apply_sine))


def block(variants: tuple[Variant, ...], datasets: tuple[str, ...], seeds: int = 2) -> Block:
    return Block(variants, datasets, STEPS, seeds, OPTIONS)


register(Suite("tiny", "two algorithms", "tests", (block((BC, ASPC), (MAZE, OTHER_MAZE)),)))
register(Suite("tiny_again", "some of the same runs", "tests", (block((BC,), (MAZE,)),)))
register(Suite("tiny_shared", "the same runs and others", "tests", (block((FAST_BC, BC), (MAZE,), 1),)))
register(Suite("tiny_stages", "a scale from another run", "tests", (block((CONVERGED, ASPC), (MAZE,)),)))
register(Suite("tiny_failing", "one run diverges", "tests", (block((FAST_BC, DIVERGING), (MAZE,), 1),)))
register(Suite("tiny_files", "a folder's files", "tests", (block((BC,), (), 1),), every_file=True))
register(Suite("tiny_network", "a network of the plugin", "tests", (block((CUSTOM,), (MAZE,), 1),)))
register(Suite("tiny_both", "two suites as one", "tests", parts=("tiny", "tiny_shared")))
