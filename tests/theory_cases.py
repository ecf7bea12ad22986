"""Cases for the tests of the theory: policies on rows of data, and critics with a known Lipschitz constant."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

exact = settings(derandomize=True, deadline=None, database=None, max_examples=150)
sizes = st.floats(0, 10)


def at_most(small_one, large_one, rounding=1e-9):
    """small_one ≤ large_one, up to rounding of numbers of that size."""
    assert small_one <= large_one + rounding * (1 + abs(large_one)), (small_one, large_one)


class Rows(NamedTuple):
    """π_t, π_{t+1} and the logged action on each row, and the values of both policies by a critic with constant L_Q."""

    pi: np.ndarray
    pi_next: np.ndarray
    actions: np.ndarray
    q: np.ndarray
    q_next: np.ndarray
    l_q: float

    def bc(self, policy):
        return np.square(policy - self.actions).sum(-1)

    @property
    def change(self):
        return self.bc(self.pi_next) - self.bc(self.pi)

    @property
    def moved(self):
        return np.square(self.pi_next - self.pi).sum(-1)

    @property
    def delta_q(self):
        return (self.q_next - self.q).mean()

    @property
    def delta_l_bc(self):
        return abs(self.change.mean())

    @property
    def c(self):
        return self.bc(self.pi).mean() ** 0.5


def rows_of_critic(pi, pi_next, actions, direction, l_q, kind):
    """Return rows with an exactly L_Q-Lipschitz critic in the action: a slope, a cone, or a wave along a direction."""
    pi, pi_next, actions, direction = (np.asarray(x, float) for x in (pi, pi_next, actions, direction))
    unit = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    critic = {
        "slope": lambda a: l_q * (unit * a).sum(-1),
        "cone": lambda a: l_q * np.linalg.norm(a - direction, axis=-1),
        "wave": lambda a: l_q * np.sin((unit * a).sum(-1)),
    }[kind]
    return Rows(pi, pi_next, actions, critic(pi), critic(pi_next), l_q)


@st.composite
def rows(draw):
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    numbers = st.floats(-3, 3, allow_subnormal=False)
    pi, actions, step, direction = (draw(arrays(np.float64, shape, elements=numbers)) for _ in range(4))
    assume((np.linalg.norm(direction, axis=-1) > 1e-3).all())
    size = draw(st.sampled_from([1e-3, 1.0, 10.0]))
    return rows_of_critic(
        pi,
        pi + size * step,
        actions,
        direction,
        draw(st.floats(0.01, 100)),
        draw(st.sampled_from(["slope", "cone", "wave"])),
    )


def mirrored(further: float, l_q: float = 3.0) -> Rows:
    """One row at distance 1 from the data moves through it to the other side, to 1 + `further`."""
    return rows_of_critic([[1.0, 0.0]], [[-1.0 - further, 0.0]], [[0.0, 0.0]], [[1.0, 0.0]], l_q, "slope")
