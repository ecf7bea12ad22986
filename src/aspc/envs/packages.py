"""Packages that register environments with Gymnasium when they are imported."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Iterator

import gymnasium as gym

PRECISION_WARNING = ".*(precision lowered|lowered by casting).*"


@contextlib.contextmanager
def quiet_packages() -> Iterator[None]:
    """Silence what the simulation packages say of their own age while they are imported or asked for old versions."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.filterwarnings("ignore", message=".*is out of date.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=PRECISION_WARNING, category=UserWarning)
        warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry.*")
        yield


def register_environments(package: str) -> None:
    """Import a package that registers its environments, if it is installed."""
    with quiet_packages(), contextlib.suppress(ImportError, gym.error.DependencyNotInstalled):
        importlib.import_module(package)
