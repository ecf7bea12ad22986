"""A residual network with SiLU activations for the actor or the critics of any algorithm.

    aspc train maze2d-umaze --plugin examples/residual.py --actor residual --critic residual --steps 20000

A policy is traced when it is saved, so you can run, evaluate and export it without this file.
"""

import equinox as eqx
import jax

from aspc.authoring import register_network


@register_network("residual")
class Residual(eqx.Module):
    first: eqx.nn.Linear
    blocks: list
    last: eqx.nn.Linear

    def __init__(self, key, in_size, out_size, width=128, blocks=2):
        key_first, key_last, *keys = jax.random.split(key, blocks + 2)
        self.first = eqx.nn.Linear(in_size, width, key=key_first)
        self.blocks = [eqx.nn.MLP(width, width, width, 1, jax.nn.silu, key=k) for k in keys]
        self.last = eqx.nn.Linear(width, out_size, key=key_last)

    def __call__(self, x):  # x is a single input; networks that take batches work as well
        x = self.first(x)
        for block in self.blocks:
            x = x + block(jax.nn.silu(x))
        return self.last(x)
