"""A custom JAX training loop in 25 lines: train TD3+BC on the transitions of a `Dataset`.

The loop passes minibatches, noise and the parts of each step to the algorithm's `update`. The optional argument is the
number of cycles of the algorithm's schedule.

    python examples/custom_loop.py 500
"""

import sys

import jax
import numpy as np

import aspc
from aspc.algorithms import default
from aspc.authoring import Batch, Spec

s, noise, end = np.split(np.random.default_rng(0).normal(size=(5000, 6)), [3, 5], axis=1)
actions = np.clip(np.tanh(s[:, :2]) + noise, -1, 1)
dataset = aspc.Dataset.from_arrays(s, actions, rewards=-np.square(noise).sum(1), terminals=end[:, 0] > 2)
t = dataset.transitions()
data = jax.device_put(Batch(t.observations, t.actions, t.rewards, t.next_observations, 1 - t.terminals))
algorithm, spec = default("td3_bc"), Spec(dataset.observation_size, dataset.action_size)
cycle = [parts for segment in algorithm.schedule() for parts in segment.steps * segment.repeats]
draws = algorithm.noise(spec, algorithm.batch_size)


def run_cycle(state, key):
    key_rows, *keys = jax.random.split(key, 1 + len(draws))
    rows = jax.random.randint(key_rows, (len(cycle), algorithm.batch_size), 0, len(t.rewards))
    noise = {name: draw.sample(key, len(cycle)) for key, (name, draw) in zip(keys, draws.items(), strict=True)}
    for i, parts in enumerate(cycle):
        inputs = jax.tree.map(lambda x, i=i: x[rows[i]], data), {name: values[i] for name, values in noise.items()}
        state, metrics = algorithm.update(state, *inputs, parts)
    return state, metrics["critic_loss"]


keys = jax.random.split(jax.random.key(0), int(sys.argv[1] if len(sys.argv) > 1 else 500))
state, losses = jax.jit(jax.lax.scan, static_argnums=0)(run_cycle, algorithm.init(jax.random.key(1), spec), keys)
print(f"critic loss before: {losses[0]:.4f}, after: {losses[-1]:.4f}")
