"""The environment and the reference scores of each benchmark dataset.

`make_env` takes a dataset's name (D4RL, generated mazes, OGBench single-task, Minari) or any Gymnasium id, and
gives an environment with a flat Box observation and D4RL's semantics where the name is D4RL's. Optional packages
are imported only when an environment that needs them is made.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from aspc import tasks
from aspc.data.sources import minari, ogbench
from aspc.envs.packages import PRECISION_WARNING, quiet_packages, register_environments
from aspc.errors import AspcError, MissingExtra, first_line, missing_module, unknown_name

__all__ = [
    "action_bounds",
    "horizon",
    "is_continuing",
    "make_env",
    "normalised_score",
    "reference_scores",
]

LOCOMOTION = {"halfcheetah": "HalfCheetah-v4", "hopper": "Hopper-v4", "walker2d": "Walker2d-v4"}
EXTRAS = {"gymnasium.envs.mujoco": "mujoco", "gymnasium_robotics": "robotics"}  # of modules with environments
DEFAULT_HORIZON = 1000  # where an environment has no step limit of its own


def make_env(name: str) -> gym.Env[Any, Any]:
    """Make the environment of a dataset or of a Gymnasium id, with a flat Box observation."""
    name = name.split("?")[0]
    family = tasks.family_of(name)
    if family is not None:
        return _make_d4rl(family)
    if ogbench.is_single_task(name):
        return _make_ogbench(name)
    if name.startswith(minari.PREFIX):
        return _flat(minari.recover_environment(name), name)
    return _flat(_make_gymnasium(name), name)


def _make_d4rl(family: str) -> gym.Env[Any, Any]:
    if family.startswith("maze2d-"):
        from aspc.envs.maze2d import Maze2dEnv

        return Maze2dEnv(family.removeprefix("maze2d-"))
    if family.startswith("antmaze-"):
        from aspc.envs.antmaze import AntMazeEnv

        return AntMazeEnv(family.removeprefix("antmaze-"))
    if family in LOCOMOTION:
        return _make_gymnasium(LOCOMOTION[family])
    from aspc.envs.adroit import make_adroit

    return make_adroit(family)


def _make_gymnasium(name: str) -> gym.Env[Any, Any]:
    if name not in gym.registry:
        register_environments("gymnasium_robotics")
    with quiet_packages():
        try:
            env = gym.make(name, disable_env_checker=True)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise _not_imported(name, error) from error
        except gym.error.Error as error:
            raise unknown_name("environment", name, _known_names()) from error
    unlimited = env.spec is not None and env.spec.max_episode_steps is None
    return gym.wrappers.TimeLimit(env, DEFAULT_HORIZON) if unlimited else env


def _not_imported(name: str, error: Exception) -> AspcError:
    """What to install for an environment whose module, or a package that this imports, cannot be imported."""
    module, _, identifier = name.rpartition(":")
    missing, spec = missing_module(error), gym.registry.get(identifier)
    if missing and f"{module}.".startswith(f"{missing}."):  # of "module:Env-v0", and it is the module that is not there
        return unknown_name("environment", name, _known_names())
    for origin, extra in EXTRAS.items():
        if missing and spec is not None and str(spec.entry_point).startswith(origin):
            return MissingExtra(f"The environment {name}", extra, error)
    if missing and isinstance(error, ImportError):  # Gymnasium's own errors say what to install
        return AspcError(f"The environment {name} needs {missing}, which is not installed; install it first.")
    reason = first_line(ImportError(*error.args[:1]))  # some have a second text
    return AspcError(f"The environment {name} cannot be made: {reason}.")


def _make_ogbench(name: str) -> gym.Env[Any, Any]:
    with quiet_packages():
        try:
            import ogbench as package  # noqa: F401  (registers its environments)

            env = gym.make(ogbench.environment_id(name), disable_env_checker=True)
        except (ImportError, gym.error.DependencyNotInstalled) as error:
            raise MissingExtra(f"The environment of {name}", "ogbench", error) from error
        except gym.error.Error as error:
            raise unknown_name("OGBench dataset", name, ogbench.known_names()) from error
    remove_model_file(env)
    return SeededGlobally(env)


def remove_model_file(env: gym.Env[Any, Any]) -> None:
    """Remove the temporary file of an OGBench maze, which OGBench leaves behind after MuJoCo has read it."""
    model = Path(getattr(env.unwrapped, "fullpath", ""))
    if model.parent == Path(tempfile.gettempdir()):
        model.unlink(missing_ok=True)


class SeededGlobally(gym.Wrapper[Any, Any, Any, Any]):
    """Makes an environment that draws from NumPy's global generator repeat itself when it is reset with a seed."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._state = np.random.RandomState().get_state()
        with self._own_generator(), quiet_packages():
            # OGBench's manipulation environments make new spaces, with a warning, at every access.
            self.action_space, self.observation_space = env.action_space, env.observation_space

    @contextlib.contextmanager
    def _own_generator(self) -> Iterator[None]:
        theirs = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._state)  # noqa: NPY002
        try:
            yield
        finally:
            self._state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(theirs)  # noqa: NPY002

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._state = np.random.RandomState(seed).get_state()
            self.action_space.seed(seed)
        with self._own_generator(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=PRECISION_WARNING, category=UserWarning)
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._own_generator():  # teleporting mazes draw while they step
            return self.env.step(action)


def _flat(env: gym.Env[Any, Any], name: str) -> gym.Env[Any, Any]:
    """The environment with one flat vector as its observation, or an error where there is none."""
    if not isinstance(env.action_space, gym.spaces.Box):
        raise AspcError(f"{name} takes discrete or structured actions; this library is for continuous (Box) ones.")
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box | gym.spaces.Dict | gym.spaces.Tuple):
        raise AspcError(f"{name} has observations of type {type(space).__name__}; only Box, Dict and Tuple work.")
    if isinstance(space, gym.spaces.Box) and space.shape is not None and len(space.shape) == 1:
        return env
    return gym.wrappers.FlattenObservation(env)


def _known_names() -> list[str]:
    return [*tasks.datasets(), *gym.registry]


class _Facts(NamedTuple):
    """What an environment that is not described by a table says of itself."""

    action_low: np.ndarray
    action_high: np.ndarray
    observation_size: int
    step_limit: int | None


@cache
def _probe(name: str) -> _Facts:
    env = make_env(name)
    actions, observations, spec = env.action_space, env.observation_space, env.spec
    env.close()
    assert isinstance(actions, gym.spaces.Box)
    assert isinstance(observations, gym.spaces.Box)
    low, high = (bound.astype(np.float32).ravel() for bound in (actions.low, actions.high))
    return _Facts(low, high, math.prod(observations.shape), None if spec is None else spec.max_episode_steps)


def sizes(name: str) -> tuple[int, int]:
    """Numbers of an observation, and of an action."""
    family = tasks.family_of(name.split("?")[0])
    if family is not None:
        return tasks.FAMILIES[family].observation_size, tasks.FAMILIES[family].action_size
    facts = _probe(name)
    return facts.observation_size, len(facts.action_low)


def check_sizes(name: str, found: tuple[int, int], data: tuple[int, int]) -> None:
    """Refuses an environment in which policies that are learned from the data cannot act."""
    if found != data:
        raise AspcError(
            f"{name} has observations of {found[0]} and actions of {found[1]} numbers, but the data have {data[0]} and "
            f"{data[1]}; evaluate in another environment (--env), or train without one (--env none)."
        )


def action_bounds(name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Lowest and highest action of an environment, or None where it states none."""
    family = tasks.family_of(name.split("?")[0])
    if family is not None:
        ones = np.ones(tasks.FAMILIES[family].action_size, dtype=np.float32)
        return -ones, ones
    low, high, *_ = _probe(name)
    return (low, high) if np.isfinite(low).all() and np.isfinite(high).all() else None


def horizon(name: str) -> int:
    """The step limit of an environment (1,000 where it has none)."""
    family = tasks.family_of(name.split("?")[0])
    if family is not None:
        return tasks.FAMILIES[family].horizon
    return _probe(name).step_limit or DEFAULT_HORIZON


def is_continuing(name: str) -> bool:
    """Whether the datasets of this environment walk on without its episodes (Maze2d)."""
    family = tasks.family_of(name.split("?")[0])
    return family is not None and tasks.FAMILIES[family].continuing


def reference_scores(name: str) -> tuple[float, float] | None:
    """The returns that score 0 and 100, or None where the benchmark has none.

    Where several D4RL datasets share an environment they share its scores, so a generated maze has them too.
    """
    name = name.split("?")[0]
    family = tasks.family_of(name)
    for dataset in tasks.datasets().values():
        if dataset.family_name == family:
            return dataset.ref_min, dataset.ref_max
    for key, env_id in LOCOMOTION.items():
        if name == env_id:
            return reference_scores(f"{key}-medium-v2")
    return minari.reference_scores(name) if name.startswith(minari.PREFIX) else None


def normalised_score(name: str, value: float) -> float | None:
    """A return as a score, 0 for the reference minimum, 100 for the maximum; None where the benchmark has none."""
    scores = reference_scores(name)
    return None if scores is None else 100.0 * (value - scores[0]) / (scores[1] - scores[0])
