"""The contract between the training loop and every algorithm."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from problems import SPEC, cycle, random_batch, random_noise, run, small

import registries
from aspc import algorithms
from aspc.adaptive_scale import AdaptiveScale
from aspc.algorithms.bc import BC
from aspc.algorithms.diffusion_ql import DiffusionQL
from aspc.algorithms.fields import with_horizon
from aspc.algorithms.interface import INNER, Algorithm
from aspc.algorithms.iql import IQL
from aspc.algorithms.td3_bc import TD3BC
from aspc.errors import AspcError
from aspc.training.hyperparameters import replace_fields
from registries import number_names

NAMES = number_names()


def signature(state: Any) -> list[tuple]:
    return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize("name", NAMES)
def test_a_state_keeps_its_types(name: str) -> None:
    """Otherwise a scan over steps does not compile, or compiles twice."""
    algorithm = small(algorithms.default(name))
    state = jax.eval_shape(lambda key: algorithm.init(key, SPEC), jax.random.key(0))
    assert not any(weak for _, _, weak in signature(state))
    batch = random_batch(1, algorithm.batch_size)
    noise = random_noise(2, algorithm)
    for parts in set(cycle(algorithm)):
        after, metrics = jax.eval_shape(lambda s, b, n, p=parts: algorithm.update(s, b, n, p), state, batch, noise)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert signature(after) == signature(state)
        assert all(metric.shape == () for metric in metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_base_has_one_inner_step_per_cycle(name: str) -> None:
    algorithm = algorithms.default(name)
    (segment,) = algorithm.unwrapped.schedule()
    assert sum(INNER in parts for parts in segment.steps) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_hyperparameter_has_a_help_text(name: str) -> None:
    """The command line shows the docstring of each field."""
    algorithm = algorithms.default(name)
    for part in (algorithm, algorithm.unwrapped):
        documented = set()
        for kind in type(part).__mro__:
            if not is_dataclass(kind):
                continue
            for line, following in itertools.pairwise(inspect.getsource(kind).splitlines()):
                if following.strip().startswith('"""'):
                    documented.add(line.split(":")[0].strip())
        assert {field.name for field in fields(part)} <= documented


def test_an_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(AspcError, match="rebrac"):
        algorithms.default("rebrak")


def test_duplicate_name_is_rejected() -> None:
    with pytest.raises(AspcError, match="already registered"):
        algorithms.register("iql")(IQL)


@pytest.mark.parametrize("name", NAMES)
def test_registered_name_does_not_depend_on_hyperparameters(name: str) -> None:
    changed = replace_fields(algorithms.default(name), {"reward_shift": 1.0, "batch_size": 7})
    assert algorithms.registered_as(changed) == name


def test_names_of_older_versions_with_a_bc_term() -> None:
    for name in NAMES:
        assert algorithms.join_bc_term(*algorithms.split_bc_term(name)) == name
    assert algorithms.split_bc_term("aspc_aw") == ("aspc", "advantage_weighted")
    assert algorithms.join_bc_term("aspc", "plain") == "aspc"


def test_unregistered_classes_have_no_name() -> None:
    class Mine(TD3BC):
        pass

    assert algorithms.registered_as(Mine()) is None
    assert algorithms.registered_as(AdaptiveScale(base=Mine())) is None


@dataclass
class Mutable:
    batch_size: int = 16


class Bare(BC):
    width: int = 16


@dataclass(frozen=True)
class Above(Bare):
    lr: float = 1e-3


@pytest.mark.parametrize(
    ("kind", "called"), [(Mutable, "Mutable"), (Bare, "Bare"), (Above, "Bare"), (object, "object")]
)
def test_algorithm_that_is_not_a_frozen_dataclass_is_rejected(kind: type, called: str) -> None:
    with registries.restored():
        algorithms.register("mine")(kind)
        message = rf"^mine must be a frozen dataclass: write @dataclass\(frozen=True\) above {called}\.$"
        with pytest.raises(AspcError, match=message):
            algorithms.default("mine")


@dataclass(frozen=True)
class WithoutBase:
    batch_size: int = 16


@dataclass(frozen=True)
class WithoutPolicy(Algorithm[Any]):
    lr: float = 1e-3

    def init(self, key: Any, spec: Any) -> Any:
        return key

    def update(self, state: Any, *_: Any) -> Any:
        return state, {}


def test_an_algorithm_derives_from_the_base_class() -> None:
    with registries.restored():
        algorithms.register("mine")(WithoutBase)
        with pytest.raises(AspcError, match=r"^mine is not an algorithm\. .*: class WithoutBase\(Algorithm\)\.$"):
            algorithms.default("mine")


def test_an_algorithm_without_a_method_is_refused() -> None:
    with registries.restored():
        algorithms.register("mine")(WithoutPolicy)
        with pytest.raises(
            AspcError, match=r"^The algorithm mine has no method policy; add it to its class, WithoutPolicy"
        ):
            algorithms.default("mine")


def test_subclass_without_new_fields_needs_no_decorator() -> None:
    class DoubledBC(TD3BC):
        climbs_q: ClassVar[bool] = True

        def bc_weight(self, ctx: Any) -> float:
            return 2.0

    with registries.restored():
        algorithms.register("doubled_bc")(DoubledBC)
        assert isinstance(algorithms.default("doubled_bc"), DoubledBC)


def test_the_horizon_reaches_a_wrapped_base() -> None:
    algorithm = with_horizon(algorithms.default("iql+aspc"), 1234)
    assert algorithm.scale_horizon == algorithm.base.lr_horizon == 1234
    assert with_horizon(algorithms.default("bc"), 1234) == algorithms.default("bc")


@pytest.mark.parametrize("name", [name for name in NAMES if algorithms.default(name).base is not None])
def test_a_wrapper_and_its_base_share_no_setting(name: str) -> None:
    """The command line shows the options of both without a prefix."""
    algorithm = algorithms.default(name)
    assert not {f.name for f in fields(algorithm)} & {f.name for f in fields(algorithm.base)}


def test_every_algorithm_declares_its_preprocessing() -> None:
    for name in NAMES:
        algorithm = algorithms.default(name)
        assert isinstance(algorithm, Algorithm)
        assert algorithm.reward_transform == algorithm.unwrapped.reward_transform


def test_dropout_only_adds_its_noise() -> None:
    plain, dropping = small(IQL()), small(IQL(actor_dropout=0.5))
    assert plain.noise(SPEC, 12) == {}
    assert dropping.noise(SPEC, 12)["dropout"].shape == (2, 12, 16)
    start = plain.init(jax.random.key(0), SPEC)
    a, b = run(plain, start, 1), run(dropping, start, 1)
    assert not np.array_equal(a.actor.mean.net.layers[0].weight, b.actor.mean.net.layers[0].weight)
    np.testing.assert_array_equal(a.critics.members.net.layers[0].weight, b.critics.members.net.layers[0].weight)


def test_average_of_the_diffusion_actor_starts_late() -> None:
    algorithm = small(DiffusionQL())
    start = algorithm.init(jax.random.key(0), SPEC)
    weight = lambda state: np.asarray(state.actor_ema.net.layers[0].weight)  # noqa: E731
    early, late = run(algorithm, start, 2), run(algorithm, start, 3)
    np.testing.assert_array_equal(weight(early), weight(start))
    assert not np.array_equal(weight(late), weight(start))
