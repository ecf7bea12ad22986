"""Collect datasets by rolling out a policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from aspc import envs
from aspc.action_space import ActionSpace
from aspc.data.dataset import Dataset
from aspc.errors import AspcError, MissingExtra
from aspc.policy import load_policy
from aspc.ui import progress_bar

Act = Callable[[np.ndarray], np.ndarray]


class Actor(NamedTuple):
    """A function from one observation to one action, which can remember earlier steps of an episode."""

    act: Act
    observation_size: int | None
    """The dimension of an observation; None if unknown."""
    reset: Callable[[], None] = lambda: None
    """Function that resets the memory at the start of an episode."""
    action_space: ActionSpace | None = None
    """The discrete factors of the actions, with their masks."""


class Recorder:
    """A recorder of transitions, one row per step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add(
        self, observation: Any, action: Any, reward: Any, terminal: bool, timeout: bool, next_observation: Any
    ) -> None:
        """Append a row. Arrays are copied, because some environments reuse their buffers."""
        row = (np.array(observation), np.array(action), reward, terminal, timeout, np.array(next_observation))
        self._rows.append(row)

    def dataset(self, **options: Any) -> Dataset:
        """Return the rows as a dataset. The options are passed to `Dataset.from_arrays`."""
        observations, actions, rewards, terminals, timeouts, next_observations = (
            np.array(x) for x in zip(*self._rows, strict=True)
        )
        timeouts[-1] = True  # the log ends here
        return Dataset.from_arrays(observations, actions, rewards, terminals, timeouts, next_observations, **options)


def load_actor(path: str, rng: np.random.Generator) -> Actor:
    """Load an actor.

    Args:
        path: The folder of a saved policy, or an ONNX file.
        rng: Random generator for stochastic policies.
    """
    if path.endswith(".onnx"):
        return _onnx_actor(Path(path))
    policy = load_policy(path)
    act = lambda observation: policy.act(observation, rng)  # noqa: E731
    return Actor(act, policy.observation_size, policy.reset, policy.action_space)


def _onnx_actor(path: Path) -> Actor:
    """Load an ONNX network with one input [batch, observation] and actions as its first output.

    A network that `aspc export` wrote can also have the input `memory` and the output `next_memory`.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(f"Running {path.name}", "onnx") from error
    if not path.is_file():
        raise AspcError(f"There is no file {path}.")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common base class
        raise AspcError(f"{path} is not a valid ONNX network.") from error
    start, text = _recorded_memory(path, session), session.get_modelmeta().custom_metadata_map.get("action_space")
    try:
        space = None if text is None else ActionSpace.from_text(text)
    except ValueError as error:
        raise AspcError(f"{path} is damaged: its action_space is invalid. Export the policy again.") from error
    inputs = [i for i in session.get_inputs() if start is None or i.name != "memory"]
    if len(inputs) != 1 or inputs[0].type != "tensor(float)":
        raise AspcError(
            f"{path} must have a single float input, a batch of observations, not {[i.type for i in inputs]}."
        )
    size = inputs[0].shape[-1] if inputs[0].shape else None

    memory = {} if start is None else {"memory": start}

    def act(observation: np.ndarray) -> np.ndarray:
        outputs = session.run(None, {inputs[0].name: observation[None].astype(np.float32), **memory})
        if start is not None:
            memory["memory"] = outputs[1]
        return np.asarray(outputs[0][0])

    def reset() -> None:
        if start is not None:
            memory["memory"] = start

    return Actor(act, size if isinstance(size, int) else None, reset, space)


def _recorded_memory(path: Path, session: Any) -> np.ndarray | None:
    """Return the initial memory [1, size] that `aspc export` recorded in a network, or None without a memory."""
    text = session.get_modelmeta().custom_metadata_map.get("initial_memory")
    if text is None:
        return None
    try:
        return np.asarray([json.loads(text)], np.float32)
    except (ValueError, TypeError) as error:
        raise AspcError(f"{path} is damaged: its initial_memory is invalid. Export the policy again.") from error


def _random_actor(low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> Act:
    def act(observation: np.ndarray) -> np.ndarray:
        return np.asarray(rng.uniform(low, high))

    return act


def explore(
    space: ActionSpace, action: np.ndarray, observation: np.ndarray, noise: float, rng: np.random.Generator
) -> np.ndarray:
    """Replace the discrete components of an action by random allowed options with probability `noise`."""
    drawn = space.sample(np.atleast_2d(observation), rng)[0]
    chosen = drawn if rng.random() < noise else space.snap(action)
    return np.where(space.is_choice, chosen, action).astype(np.float32)


def collect(env_name: str, policy: str, steps: int, *, noise: float = 0.0, seed: int = 0) -> Dataset:
    """Collect a dataset by rolling out a policy.

    Args:
        env_name: Name of the environment.
        policy: "random", the folder of a saved policy, or an ONNX file.
        steps: Number of steps.
        noise: Standard deviation of Gaussian action noise, relative to half the action range; for discrete actions,
            the probability of a random option.
        seed: Seed of the environment and of the noise.
    """
    if steps < 2:
        raise AspcError(f"A collected dataset needs at least 2 steps, not {steps}.")
    if seed < 0:
        raise AspcError(f"The seed must be 0 or more, not {seed}.")
    if noise < 0:
        raise AspcError(f"The noise must be at least 0, not {noise}.")
    env, rng = envs.make_env(env_name), np.random.default_rng(seed)
    box, space = env.action_space, envs.choices(env_name)
    assert isinstance(box, gym.spaces.Box)
    low, high = (np.asarray(bound, dtype=np.float32).ravel() for bound in (box.low, box.high))
    actor = Actor(_random_actor(low, high, rng), None) if policy == "random" else load_actor(policy, rng)
    act, size = actor.act, actor.observation_size
    observation, _ = env.reset(seed=seed)
    if size is not None and size != observation.shape[-1]:
        raise AspcError(
            f"{policy} takes observations of size {size}, but those of {env_name} have size {observation.shape[-1]}."
        )
    if space is not None and actor.action_space is not None and actor.action_space.sizes == space.sizes:
        space = actor.action_space  # with the policy's names and masks, which no environment declares
    spread = noise * (high - low) / 2
    if space is not None:
        spread = np.where(space.is_choice, 0, spread)
    recorder = Recorder()
    with progress_bar(f"Collecting in {env_name}", steps) as advance:
        for t in range(steps):
            action = np.asarray(act(observation), dtype=np.float32).ravel()
            if action.shape != low.shape:
                raise AspcError(f"{policy} returns actions of size {action.size}, but {env_name} needs {low.size}.")
            action = np.clip(action + spread * rng.standard_normal(low.size), low, high)
            if space is not None:
                action = explore(space, action, observation, noise, rng)
            next_observation, reward, terminal, timeout, _ = env.step(action)
            recorder.add(observation, action, reward, terminal, timeout, next_observation)
            observation = next_observation
            if terminal or timeout:
                observation = env.reset()[0]
                actor.reset()
            if t % 1_000 == 999:
                advance(t + 1)
    env.close()
    return recorder.dataset(
        env=env_name, action_space=space, name=f"{env_name.replace('/', '-')} by {Path(policy).name}"
    )
