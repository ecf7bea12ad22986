"""What plugins register, forgotten after a test: others go over all that is registered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aspc import algorithms, plugins
from aspc.lab.suites import declaration


@contextmanager
def restored() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, "_REGISTRY", dict(algorithms._REGISTRY))
        patch.setattr(declaration, "_SUITES", dict(declaration._SUITES))
        patch.setattr(plugins, "_loaded", None)
        patch.setattr(sys, "path", list(sys.path))
        yield
    sys.modules.pop(plugins.MODULE, None)
