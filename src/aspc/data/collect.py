"""Roll a policy out into a new dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aspc.data import cache
from aspc.data.dataset import Dataset
from aspc.errors import AspcError, MissingExtra

Act = Callable[[np.ndarray], np.ndarray]


class Recorder:
    """Rows as an environment gives them, step by step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add(self, observation: Any, action: Any, reward: Any, terminal: bool, timeout: bool, following: Any) -> None:
        # Copies: some environments write into the array that they gave.
        self._rows.append((np.array(observation), np.array(action), reward, terminal, timeout, np.array(following)))

    def dataset(self, **options: Any) -> Dataset:
        """What was recorded; options are those of `Dataset.from_arrays`."""
        observations, actions, rewards, terminals, timeouts, following = (
            np.array(x) for x in zip(*self._rows, strict=True)
        )
        timeouts[-1] = True  # the log stops here
        return Dataset.from_arrays(observations, actions, rewards, terminals, timeouts, following, **options)


def load_actor(path: str, rng: np.random.Generator) -> tuple[Act, int | None]:
    """A function from one observation to one action, from a saved policy's folder or an ONNX file, and the size of
    observation that it takes, where that is known; a policy that samples draws from `rng`."""
    if path.endswith(".onnx"):
        return _onnx_actor(Path(path))
    from aspc.policy import load_policy

    policy = load_policy(path)
    return (lambda observation: policy.act(observation, rng)), policy.observation_size


def _onnx_actor(path: Path) -> tuple[Act, int | None]:
    """An ONNX network with one input [batch, observation] and actions as its first output."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(f"Running {path.name}", "onnx") from error
    if not path.is_file():
        raise AspcError(f"There is no file {path}.")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # a boundary: ONNX Runtime's errors share no class of their own
        raise AspcError(f"{path} is not an ONNX network that can be run.") from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type != "tensor(float)":
        raise AspcError(f"{path} must take one float input, a batch of observations; it takes {len(inputs)}.")
    size = inputs[0].shape[-1] if inputs[0].shape else None

    def act(observation: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {inputs[0].name: observation[None].astype(np.float32)})[0])[0]

    return act, size if isinstance(size, int) else None


def collect(env_name: str, policy: str, steps: int, *, noise: float = 0.0, seed: int = 0) -> Dataset:
    """`steps` steps of a policy in an environment, with Gaussian noise of `noise` times half the action range."""
    from aspc import envs

    if steps < 2:
        raise AspcError(f"Collecting needs at least 2 steps, not {steps}.")
    if seed < 0:
        raise AspcError(f"The seed must be 0 or more, not {seed}.")
    if noise < 0:
        raise AspcError(f"The noise is a standard deviation and cannot be {noise}.")
    env, rng = envs.make_env(env_name), np.random.default_rng(seed)
    low, high = (np.asarray(bound, dtype=np.float32).ravel() for bound in (env.action_space.low, env.action_space.high))  # type: ignore[attr-defined]
    if policy == "random":
        act, size = (lambda _: rng.uniform(low, high)), None
    else:
        act, size = load_actor(policy, rng)
    observation, _ = env.reset(seed=seed)
    if size is not None and size != observation.shape[-1]:
        raise AspcError(f"{policy} takes observations of {size} numbers, but {env_name} gives {observation.shape[-1]}.")
    recorder = Recorder()
    with cache.progress(f"Collecting in {env_name}", steps) as advance:
        for t in range(steps):
            action = np.asarray(act(observation), dtype=np.float32).ravel()
            if action.shape != low.shape:
                raise AspcError(f"{policy} gives {action.size} action numbers, but {env_name} takes {low.size}.")
            action = np.clip(action + noise * (high - low) / 2 * rng.standard_normal(low.size), low, high)
            following, reward, terminal, timeout, _ = env.step(action)
            recorder.add(observation, action, reward, terminal, timeout, following)
            observation = env.reset()[0] if terminal or timeout else following
            if t % 1_000 == 999:
                advance(t + 1)
    env.close()
    return recorder.dataset(env=env_name, name=f"{env_name.replace('/', '-')} by {Path(policy).name}")
