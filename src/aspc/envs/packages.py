"""Packages that register environments with Gymnasium when they are imported."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym

PRECISION_WARNING = ".*(precision lowered|lowered by casting).*"


@contextlib.contextmanager
def quiet_packages() -> Iterator[None]:
    """Silence deprecation and precision warnings from simulation packages."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.filterwarnings("ignore", message=".*is out of date.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=PRECISION_WARNING, category=UserWarning)
        warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry.*")
        yield


def register_environments(package: str) -> None:
    """Import a package that registers its environments, if it is installed."""
    with quiet_packages(), contextlib.suppress(ImportError, gym.error.DependencyNotInstalled):
        importlib.import_module(package)


def remove_model_file(env: gym.Env[Any, Any]) -> None:
    """Remove the temporary model file that an OGBench maze leaves behind after MuJoCo has read it."""
    model = Path(getattr(env.unwrapped, "fullpath", ""))
    if model.parent == Path(tempfile.gettempdir()):
        model.unlink(missing_ok=True)
