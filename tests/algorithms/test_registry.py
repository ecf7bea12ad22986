"""Names of algorithms from outside the package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms import default, names, register, registered_as
from aspc.algorithms.bc import BC
from aspc.algorithms.td3_bc import TD3BC
from aspc.errors import AspcError
from registries import restored


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    with restored():
        yield


@dataclass(frozen=True)
class Mine(TD3BC[Any]):
    """TD3+BC with another default."""

    alpha: float = 4.0


def test_scalable_algorithm_is_also_registered_with_a_learned_scale() -> None:
    register("mine")(Mine)
    learned = default("mine+aspc")
    assert isinstance(learned, AdaptiveScale)
    assert isinstance(learned.base, Mine)
    assert (learned.initial_scale, learned.outer_loss) == (4.0, default("iql+aspc").outer_loss)  # type: ignore[attr-defined]
    assert registered_as(learned) == "mine+aspc"


def test_other_algorithms_and_functions_are_registered_once() -> None:
    register("plain")(BC)
    register("made")(lambda: Mine())
    assert not {"plain+aspc", "made+aspc"} & set(names())


def test_your_own_variant_replaces_the_automatic_one() -> None:
    register("mine")(Mine)
    register("mine+aspc")(lambda: AdaptiveScale(base=Mine(), k_alpha=30))
    assert default("mine+aspc").k_alpha == 30  # type: ignore[attr-defined]
    with pytest.raises(AspcError, match="already registered"):
        register("mine+aspc")(lambda: AdaptiveScale(base=Mine()))


def test_a_variant_that_was_registered_first_is_kept() -> None:
    register("mine+aspc")(lambda: AdaptiveScale(base=Mine(), k_alpha=30))
    register("mine")(Mine)
    assert default("mine+aspc").k_alpha == 30  # type: ignore[attr-defined]
