"""Train TD3+BC on random data with eight values of alpha at once, by applying `jax.vmap` to the training loop.

Fields declared as `Scalar`, `NonNegative` or `Fraction` accept traced numbers, so one program trains with all values.

    python examples/vmapped_hyperparameters.py --cycles 500
"""

import argparse
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from aspc.algorithms import default
from aspc.authoring import Batch, Spec

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cycles", type=int, default=500, help="schedule cycles, each with one actor update")
parser.add_argument("--hidden-dim", type=int, default=64, help="width of all hidden layers")
args = parser.parse_args()

ALPHAS = jnp.asarray([0.0, 0.1, 0.3, 1.0, 2.5, 5.0, 10.0, 30.0])
SPEC, ROWS = Spec(obs_dim=4, act_dim=2), 4096
algorithm = replace(default("td3_bc"), actor_hidden_dim=args.hidden_dim, critic_hidden_dim=args.hidden_dim)
(segment,) = algorithm.schedule()  # one step of the critics, then one step of the critics and the actor

rng = np.random.default_rng(0)
s, a = rng.normal(size=(ROWS, SPEC.obs_dim)), rng.uniform(-1, 1, (ROWS, SPEC.act_dim))
data = jax.tree.map(jnp.float32, Batch(s, a, -np.square(a - 0.5).sum(1), rng.permutation(s), np.ones(ROWS)))
rows = rng.integers(0, ROWS, (args.cycles, len(segment.steps), algorithm.batch_size))
noise = {"target_policy": jnp.float32(rng.normal(size=(*rows.shape, SPEC.act_dim)))}  # see algorithm.noise


def train(alpha):
    variant = replace(algorithm, alpha=alpha)

    def run_cycle(state, inputs):
        for i, parts in enumerate(segment.steps):
            indices, draws = jax.tree.map(lambda x, i=i: x[i], inputs)
            batch = jax.tree.map(lambda x, indices=indices: x[indices], data)
            state, metrics = variant.update(state, batch, draws, parts)
        return state, metrics

    _, metrics = jax.lax.scan(run_cycle, variant.init(jax.random.key(0), SPEC), (rows, noise))
    return {name: values[-1] for name, values in metrics.items()}


metrics = jax.jit(jax.vmap(train))(ALPHAS)
names = ["critic_loss", "actor_q_mean", "bc_loss"]
print(f"{'alpha':>6s}" + "".join(f"{name:>14s}" for name in names))
for i, alpha in enumerate(ALPHAS):
    print(f"{alpha:6.1f}" + "".join(f"{metrics[name][i]:14.4f}" for name in names))
