"""Decide whether it is safe to make an environment that is named in a file.

A dataset, a packed folder or a run's config may come from someone else, and making an environment runs code. A name
from a file is therefore accepted only if a known package has registered its entry point. Names given by the user
(`--env`, `env=`) are not checked here. The specification inside a Minari dataset is checked, since it is also data.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, parse_env_id

from aspc import minari_store, tasks
from aspc.envs.packages import register_environments

KNOWN_PACKAGES = ("aspc", "gymnasium", "gymnasium_robotics", "ogbench")
RENDERING = "gymnasium.wrappers.rendering"  # its wrappers write videos and open windows


def requires_user_consent(env: str) -> bool:
    """Return whether a name is accepted only from the user: `module:Id` imports code, `minari:ID` downloads data."""
    return ":" in env


def problem_with_name(env: str) -> str | None:
    """Return the reason why an environment named by a file cannot be made, or None if it can.

    An unregistered name passes: `make_env` reports it as unknown without importing anything.
    """
    if env.startswith(minari_store.PREFIX):
        return "a Minari dataset is opened only if you name it yourself"
    if requires_user_consent(env):
        return "it would import a module that the file names"
    env = tasks.without_query(env)
    if tasks.family_of(env) is not None or tasks.is_ogbench_task(env):
        return None
    for spec in _registered_specs(env):
        if not _is_known(spec.entry_point):
            return f"its entry point {_shorten(spec.entry_point)} belongs to none of {', '.join(KNOWN_PACKAGES)}"
    return None


def problem_with_spec(spec: EnvSpec) -> str | None:
    """Return the reason why the environment specified in a dataset cannot be made, or None if it can.

    The entry point must be registered as an environment of a known package. Being in the package is not enough, since
    `gymnasium` alone has many functions that are not environments. Wrappers must be Gymnasium's own, and arguments must
    be plain values that do not name files.
    """
    for package in ("gymnasium_robotics", "ogbench"):
        if str(spec.entry_point).startswith(f"{package}."):
            register_environments(package)
    registered = {known.entry_point for known in gym.registry.values() if _is_known(known.entry_point)}
    if not isinstance(spec.entry_point, str) or spec.entry_point not in registered:
        return f"its entry point {_shorten(spec.entry_point)} is not an environment of {', '.join(KNOWN_PACKAGES)}"
    for wrapper in spec.additional_wrappers:
        if not _is_gymnasium_wrapper(wrapper.entry_point):
            return f"its wrapper {_shorten(wrapper.entry_point)} is not one of Gymnasium's"
    for arguments in (spec.kwargs, *(wrapper.kwargs for wrapper in spec.additional_wrappers)):
        if not isinstance(arguments, dict | None) or not _is_plain(arguments):
            return f"its arguments {_shorten(arguments)} refer to a file"
    return None


def _registered_specs(env: str) -> list[EnvSpec]:
    """Return the specifications that `gymnasium.make` can choose: all versions, if the name has no version."""
    if env not in gym.registry:
        register_environments("gymnasium_robotics")
    if env in gym.registry:
        return [gym.registry[env]]
    try:
        namespace, name, version = parse_env_id(env)
    except gym.error.Error:
        return []
    if version is not None:
        return []
    return [spec for spec in gym.registry.values() if (spec.namespace, spec.name) == (namespace, name)]


def _is_known(entry_point: Any) -> bool:
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", None)
    return isinstance(module, str) and module.partition(":")[0].partition(".")[0] in KNOWN_PACKAGES


def _is_gymnasium_wrapper(entry_point: Any) -> bool:
    module, _, name = entry_point.partition(":") if isinstance(entry_point, str) else ("", "", "")
    if name not in gym.wrappers.__all__ or not module.startswith("gymnasium.wrappers.") or module == RENDERING:
        return False
    return getattr(vars(gym.wrappers).get(name), "__module__", None) == module


def _is_plain(value: Any) -> bool:
    """Return whether a value contains only numbers and words; a path would make the environment read a file."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return not any(mark in value for mark in "/\\~")
    return value is None or isinstance(value, bool | int | float)


def _shorten(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
