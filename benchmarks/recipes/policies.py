"""Behavior policies stored as NumPy arrays, and behavior cloning of demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]

# Settings of behavior cloning. D4RL does not publish how it trained its clones, so these are common values.
CLONE_UNITS = 64
CLONE_EPOCHS = 50
CLONE_BATCH = 64
CLONE_LEARNING_RATE = 1e-3
MIN_SCALE = 1e-3  # smallest standard deviation by which a column is divided


def load_arrays(path: Path) -> Arrays:
    """Read the arrays of an NPZ file."""
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def snapshot_policy(stored: Arrays, index: int) -> Act:
    """Return a Gaussian policy with two tanh layers, from one snapshot of a training run."""
    p = {name: array[index] for name, array in stored.items()}
    scale, std = 1 / (p["obs_std"] + np.float32(1e-6)), np.exp(p["logstd"])

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = (observation - p["obs_mean"]) * scale
        x = np.tanh(np.tanh(x @ p["W0"] + p["b0"]) @ p["W1"] + p["b1"])
        action: np.ndarray = x @ p["Wout"] + p["bout"] + std * rng.standard_normal(std.size, np.float32)
        return action

    return act


def squashed_policy(stored: Arrays, index: int) -> Act:
    """Return a SAC policy: the tanh of a Gaussian whose mean and standard deviation are computed by two ReLU layers."""
    p = {name: array[index] for name, array in stored.items() if name != "names"}

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = np.maximum(np.maximum(observation @ p["W0"] + p["b0"], 0) @ p["W1"] + p["b1"], 0)
        std = np.exp(np.clip(x @ p["Wls"] + p["bls"], -20, 2))
        action: np.ndarray = np.tanh(x @ p["Wmu"] + p["bmu"] + std * rng.standard_normal(std.size, np.float32))
        return action

    return act


def hand_policy(p: Arrays, _: int) -> Act:
    """Return a Gaussian policy with two tanh layers for an Adroit hand. Weights have the shape [out, in]."""
    std = np.exp(p["log_std"]).astype(np.float32)

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        x = (observation - p["in_shift"]) / (p["in_scale"] + np.float32(1e-8))
        x = np.tanh(p["W1"] @ np.tanh(p["W0"] @ x + p["b0"]) + p["b1"])
        mean: np.ndarray = (p["W2"] @ x + p["b2"]) * p["out_scale"] + p["out_shift"]
        return mean + std * rng.standard_normal(std.size, np.float32)

    return act


# The names are part of every rollout's seed.
POLICIES: Mapping[str, Callable[[Arrays, int], Act]] = {
    "snapshot": snapshot_policy,
    "squashed": squashed_policy,
    "hand": hand_policy,
}


def ant_action(p: Arrays, observation: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the goal-reaching ant's action for walking in a direction. Weights have the shape [out, in]."""
    unit = 10 * direction / (np.linalg.norm(direction) + 1e-9)
    features = np.concatenate([observation[2:], unit]).astype(np.float32)
    hidden = np.maximum(p["fc0_W"] @ features + p["fc0_b"], 0)
    hidden = np.maximum(p["fc1_W"] @ hidden + p["fc1_b"], 0)
    action: np.ndarray = np.tanh(p["last_fc_W"] @ hidden + p["last_fc_b"])
    return action


def fit_clone(observations: np.ndarray, actions: np.ndarray, seed: int = 0) -> Arrays:
    """Fit a Gaussian policy to demonstrations by behavior cloning.

    The mean is fitted to standardized actions by least squares with Adam. The standard deviation of each action is the
    root mean square of the residuals, which is its maximum-likelihood estimate.

    Returns:
        The arrays of a policy as `hand_policy` expects them.
    """
    rng = np.random.default_rng(seed)
    in_shift, in_scale = observations.mean(0), np.maximum(observations.std(0), MIN_SCALE)
    out_shift, out_scale = actions.mean(0), np.maximum(actions.std(0), MIN_SCALE)
    inputs, targets = (observations - in_shift) / in_scale, (actions - out_shift) / out_scale
    sizes = (inputs.shape[1], CLONE_UNITS, CLONE_UNITS, targets.shape[1])
    p: Arrays = {}
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        p[f"W{i}"] = (rng.standard_normal((fan_out, fan_in)) / np.sqrt(fan_in)).astype(np.float32)
        p[f"b{i}"] = np.zeros(fan_out, np.float32)
    moments = {name: (np.zeros_like(array), np.zeros_like(array)) for name, array in p.items()}
    step = 0
    for _ in range(CLONE_EPOCHS):
        order = rng.permutation(len(inputs))
        for batch in np.array_split(order, max(len(inputs) // CLONE_BATCH, 1)):
            step += 1
            for name, gradient in _gradients(p, inputs[batch], targets[batch]).items():
                first, second = moments[name]
                first += np.float32(0.1) * (gradient - first)
                second += np.float32(0.001) * (gradient**2 - second)
                corrected = first / np.float32(1 - 0.9**step)
                p[name] -= CLONE_LEARNING_RATE * corrected / (np.sqrt(second / np.float32(1 - 0.999**step)) + 1e-8)
    residual = (_layers(p, inputs)[-1] - targets) * out_scale
    log_std = np.log(np.maximum(np.sqrt(np.mean(residual**2, axis=0)), MIN_SCALE))
    around = {"in_shift": in_shift, "in_scale": in_scale, "out_shift": out_shift, "out_scale": out_scale}
    return {name: np.asarray(array, np.float32) for name, array in {**p, **around, "log_std": log_std}.items()}


def _layers(p: Arrays, x: np.ndarray) -> list[np.ndarray]:
    """Return the network's input and the output of each layer."""
    first = np.tanh(x @ p["W0"].T + p["b0"])
    second = np.tanh(first @ p["W1"].T + p["b1"])
    return [x, first, second, second @ p["W2"].T + p["b2"]]


def _gradients(p: Arrays, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Return the gradients of half the mean squared error."""
    layers, gradients = _layers(p, x), Arrays()
    delta = (layers[3] - y) / np.float32(y.size)
    for i in (2, 1, 0):
        gradients[f"W{i}"], gradients[f"b{i}"] = delta.T @ layers[i], delta.sum(0)
        if i:
            delta = (delta @ p[f"W{i}"]) * (1 - layers[i] ** 2)
    return gradients
