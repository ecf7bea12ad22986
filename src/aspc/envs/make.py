"""Make the environment of a dataset (D4RL, generated maze, OGBench single task, Minari) or a Gymnasium id.

Observations are flat Box vectors. Actions are Box vectors, too: a discrete action has one column per option
(`aspc.envs.choices`). Environments with D4RL names behave as in D4RL. Optional packages are imported
only when an environment needs them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from aspc import minari_store, tasks
from aspc.envs.adroit import make_adroit
from aspc.envs.allowed import problem_with_spec
from aspc.envs.antmaze import AntMazeEnv
from aspc.envs.choices import with_choice_columns
from aspc.envs.maze2d import Maze2dEnv
from aspc.envs.packages import PRECISION_WARNING, quiet_packages, register_environments, remove_model_file
from aspc.errors import AspcError, MissingExtra, first_line, missing_module, unknown_name

EXTRAS = {  # extras by the module of the entry point
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium_robotics": "robotics",
}
DEFAULT_HORIZON = 1000  # step limit of environments that define none


def make_env(name: str) -> gym.Env[Any, Any]:
    """Make an environment with flat Box observations.

    Args:
        name: A dataset's name, or any Gymnasium id.

    Raises:
        AspcError: The name is unknown, a package is missing, or the spaces are not supported.
    """
    name = tasks.without_query(name)
    family = tasks.family_of(name)
    if family is not None:
        return _make_d4rl(family)
    if tasks.is_ogbench_task(name):
        return _make_ogbench(name)
    if name.startswith(minari_store.PREFIX):
        return _flatten_observations(_make_minari(name), name)
    return _flatten_observations(_make_gymnasium(name), name)


def _make_d4rl(family: str) -> gym.Env[Any, Any]:
    if family.startswith("maze2d-"):
        return Maze2dEnv(family.removeprefix("maze2d-"))
    if family.startswith("antmaze-"):
        return AntMazeEnv(family.removeprefix("antmaze-"))
    if family in tasks.LOCOMOTION_IDS:
        return _make_gymnasium(tasks.LOCOMOTION_IDS[family])
    return make_adroit(family)


def _make_gymnasium(name: str) -> gym.Env[Any, Any]:
    if name not in gym.registry:
        register_environments("gymnasium_robotics")
    with quiet_packages():
        try:
            env = gym.make(name, disable_env_checker=True)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise _import_error(name, error) from error
        except gym.error.Error as error:
            raise unknown_name("environment", name, _known_names()) from error
    is_unlimited = env.spec is not None and env.spec.max_episode_steps is None
    return gym.wrappers.TimeLimit(env, DEFAULT_HORIZON) if is_unlimited else env


def _known_names() -> list[str]:
    return [*tasks.d4rl_datasets(), *gym.registry]


def _import_error(name: str, error: Exception) -> AspcError:
    """Return an error for a failed import that names the package or extra to install."""
    module, _, env_id = name.rpartition(":")
    missing, spec = missing_module(error), gym.registry.get(env_id)
    if missing and f"{module}.".startswith(f"{missing}."):  # the module of "module:Env-v0" itself does not exist
        return unknown_name("environment", name, _known_names())
    for origin, extra in EXTRAS.items():
        if missing and spec is not None and str(spec.entry_point).startswith(origin):
            return MissingExtra(f"The environment {name}", extra, error)
    if missing and isinstance(error, ImportError):  # Gymnasium's own errors name what to install
        return AspcError(f"The environment {name} needs {missing}, which is not installed; install it first.")
    reason = first_line(ImportError(*error.args[:1]))  # some errors have a second message
    return AspcError(f"The environment {name} cannot be made: {reason}.")


def _make_minari(name: str) -> gym.Env[Any, Any]:
    """Make the evaluation environment of a Minari dataset, if its entry point is in a trusted package."""
    spec, dataset_id = minari_store.evaluation_spec(minari_store.open_dataset(name)), minari_store.parse_id(name)
    if spec is None:
        raise AspcError(f"The Minari dataset {dataset_id} does not specify an environment; pass one with --env.")
    if problem := problem_with_spec(spec):
        raise AspcError(
            f"Refusing to create the environment of {dataset_id}: {problem}; "
            "pass one that you trust with --env MODULE:ID."
        )
    with quiet_packages():
        try:
            return gym.make(spec)
        except Exception as error:  # constructors can raise any exception for invalid arguments
            raise AspcError(f"The environment of {dataset_id} cannot be made: {first_line(error)}.") from error


def _make_ogbench(name: str) -> gym.Env[Any, Any]:
    with quiet_packages():
        try:
            import ogbench  # noqa: F401  (registers its environments)

            env = gym.make(tasks.ogbench_env_id(name), disable_env_checker=True)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"The environment of {name}", "ogbench", error) from error
        except gym.error.Error as error:
            raise unknown_name("OGBench dataset", name, tasks.ogbench_names()) from error
    remove_model_file(env)
    return GlobalRngWrapper(env)


class GlobalRngWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Give an environment its own state of NumPy's global generator, seeded with `reset(seed=…)`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._state = np.random.RandomState().get_state()
        with self._swapped_state(), quiet_packages():
            # OGBench's manipulation environments create new spaces, with a warning, on every access.
            self.action_space, self.observation_space = env.action_space, env.observation_space

    @contextlib.contextmanager
    def _swapped_state(self) -> Iterator[None]:
        outer = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._state)  # noqa: NPY002
        try:
            yield
        finally:
            self._state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(outer)  # noqa: NPY002

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._state = np.random.RandomState(seed).get_state()
            self.action_space.seed(seed)
        with self._swapped_state(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=PRECISION_WARNING, category=UserWarning)
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._swapped_state():  # teleporting mazes draw random numbers in `step`
            return self.env.step(action)


def _flatten_observations(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """Return the environment with flat Box observations; raise an `AspcError` for spaces that are not supported."""
    env = with_choice_columns(env, name)
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box | gym.spaces.Dict | gym.spaces.Tuple):
        raise AspcError(
            f"{name} has observations of type {type(space).__name__}; only Box, Dict and Tuple are supported."
        )
    if isinstance(space, gym.spaces.Box) and space.shape is not None and len(space.shape) == 1:
        return env
    return gym.wrappers.FlattenObservation(env)
