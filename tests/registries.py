"""Isolation of registries: tests that load plugins must not affect tests that iterate over all registered names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aspc import plugins
from aspc.algorithms import component_names, policy_tracing, registry
from aspc.lab.suites import declaration


def number_names() -> list[str]:
    """Return the names of the algorithms that learn actions that are numbers."""
    return [name for name in registry.names() if registry.default(name).handles_numbers]


@contextmanager
def restored() -> Iterator[None]:
    """Restore the registries, the plugin and `sys.path` at the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
        patch.setattr(registry, "_AUTOMATIC", set(registry._AUTOMATIC))
        components = {kind: dict(known) for kind, known in component_names._REGISTRIES.items()}
        patch.setattr(component_names, "_REGISTRIES", components)
        patch.setattr(component_names, "_AUTOMATIC", set(component_names._AUTOMATIC))
        patch.setattr(policy_tracing, "_KINDS", dict(policy_tracing._KINDS))
        patch.setattr(declaration, "_SUITES", dict(declaration._SUITES))
        patch.setattr(plugins, "_loaded", None)
        patch.setattr(sys, "path", list(sys.path))
        yield
    for name in [name for name in sys.modules if name.startswith((plugins.MODULE, plugins.CALLBACK_MODULE))]:
        del sys.modules[name]
