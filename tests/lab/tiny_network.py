"""A suite whose runs use a network of the same file. `--plugin` loads it."""

from __future__ import annotations

from typing import Any

import jax

from aspc.authoring import init_apply, register_network
from aspc.lab.suites import Block, Suite, Variant, register


def init_sine(key: Any, in_size: int, out_size: int) -> Any:
    return jax.random.normal(key, (in_size, out_size))


def apply_sine(weight: Any, x: Any) -> Any:
    return jax.numpy.sin(x @ weight)


register_network("tiny_sine")(init_apply(init_sine, apply_sine))
VARIANT = Variant("BC, own network", "bc", {"actor": "tiny_sine", "batch_size": 8})
OPTIONS = {"eval_every": 500, "eval_episodes": 1, "log_every": 500}
BLOCK = Block((VARIANT,), ("maze2d-umaze?steps=2000",), 500, 1, OPTIONS)
register(Suite("tiny_network", "a network of the plugin", "tests", (BLOCK,)))
