"""The paper's propositions and theorems as functions, in the paper's order and symbols, and a training monitor.

docs/theory.md discusses which statements hold; tests/test_theory.py checks every statement. Symbols
(section "Theoretical Analysis" and appendix A of the paper):

    π_t, π_{t+1}  the policy before and after the inner step;  π_β, a  the behavior policy and its logged action
    L_BC(π)       E_D ‖π(s) − a‖²;                             ΔL_BC = |L_BC(π_{t+1}) − L_BC(π_t)|
    c             √L_BC(π_t);                                  c∞    = sup ‖π_t(s) − a‖
    x             E_D ‖π_{t+1}(s) − π_t(s)‖²;                  x∞    = sup ‖π_{t+1}(s) − π_t(s)‖²
    ΔL∞           sup |‖π_{t+1}(s) − a‖² − ‖π_t(s) − a‖²|;     ΔQ    = E_D[Q(s, π_{t+1}(s)) − Q(s, π_t(s))]
    L_Q, L_P      Lipschitz constants, in the action, of Q and of P(·|s, a), the latter in total variation ½‖·‖₁

‖·‖² is the *sum* over action dimensions, as in the paper. The BC losses logged by training are means over the
dimensions (the released trainer's convention); multiply them by the number of dimensions before comparing.

The bounds use only arithmetic, so they accept Python floats, NumPy arrays and JAX arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from aspc.adaptive_scale import LearnedScale
from aspc.algorithms.interface import Algorithm, Batch, Metrics, Noise, OuterTerms, Parts, ScalableAlgorithm
from aspc.networks import DeterministicActor, GaussianActor

Number = Any  # a float or an array of floats


def positive_part(value: Number) -> Number:
    """Compute max{value, 0}, for floats and arrays."""
    return (value > 0) * value


# ---------------------------------------------------------------------------------------------------------------
# Proposition 1 (appendix A.1): ΔL_BC and (ΔQ)² constrain each other
# ---------------------------------------------------------------------------------------------------------------


def delta_l_bc_from_step(x: Number, c: Number) -> Number:
    """Return the bound of step 1:  ΔL_BC ≥ max{x − 2c√x, 0}, by the reverse triangle inequality and Cauchy–Schwarz."""
    return positive_part(x - 2 * c * x**0.5)


def delta_q_squared_from_step(x: Number, l_q: Number) -> Number:
    """Return the bound of step 2:  (ΔQ)² ≤ L_Q²·x, by Jensen's inequality and the Lipschitz critic."""
    return l_q**2 * x


def delta_l_bc_lower_bound(delta_q: Number, c: Number, l_q: Number) -> Number:
    """Return the first bound of Proposition 1:  ΔL_BC ≥ max{0, (ΔQ)²/L_Q² − 2c|ΔQ|/L_Q}.

    It is 0, and therefore vacuous, unless |ΔQ| > 2c·L_Q.
    """
    return delta_l_bc_from_step((delta_q / l_q) ** 2, c)


def step_upper_bound(delta_l_bc: Number, c: Number) -> Number:
    """Return the bound of step 3, which solves step 1 for x:  x ≤ (c + √(c² + ΔL_BC))²."""
    return (c + (c**2 + delta_l_bc) ** 0.5) ** 2


def delta_q_squared_upper_bound(delta_l_bc: Number, c: Number, l_q: Number) -> Number:
    """Return the second bound of Proposition 1:  (ΔQ)² ≤ L_Q²·(c + √(c² + ΔL_BC))².

    It never falls below 4c²L_Q²: a policy can move to the mirror image of the data without changing its BC loss.
    """
    return delta_q_squared_from_step(step_upper_bound(delta_l_bc, c), l_q)


# ---------------------------------------------------------------------------------------------------------------
# Lemmas of Proposition 2 (appendix A.2), and finite MDPs on which all of them can be computed exactly
# ---------------------------------------------------------------------------------------------------------------


class FiniteMDP(NamedTuple):
    """A finite MDP whose actions are points in space, so that "Lipschitz in the action" is defined.

    A policy is an array π[s, i], the probability of action i in state s; a deterministic policy has a single 1 per row.
    All quantities are computed exactly with NumPy, for proofs and tests rather than for training.
    """

    start: Float[np.ndarray, "states"]
    transition: Float[np.ndarray, "states actions states"]
    reward: Float[np.ndarray, "states actions"]
    actions: Float[np.ndarray, "actions dim"]
    gamma: float

    def policy(self, choices: Any) -> Float[np.ndarray, "states actions"]:
        """Return the deterministic policy that takes action `choices[s]` in state s."""
        pi: np.ndarray = np.eye(len(self.actions))[np.asarray(choices)]
        return pi

    def value(self, pi: np.ndarray) -> Float[np.ndarray, "states"]:
        """Compute V^π = (I − γP_π)⁻¹ r_π."""
        p_pi = np.einsum("si,sit->st", pi, self.transition)
        return np.linalg.solve(np.eye(len(p_pi)) - self.gamma * p_pi, (pi * self.reward).sum(1))

    def q(self, pi: np.ndarray) -> Float[np.ndarray, "states actions"]:
        """Compute Q^π(s, a) = r(s, a) + γ·E V^π(s')."""
        q: np.ndarray = self.reward + self.gamma * self.transition @ self.value(pi)
        return q

    def visitation(self, pi: np.ndarray) -> Float[np.ndarray, "states"]:
        """Compute the discounted visitation distribution d_π = (1 − γ)·Σ_k γᵏ·P(s_k = s), which sums to 1."""
        p_pi = np.einsum("si,sit->st", pi, self.transition)
        return (1 - self.gamma) * np.linalg.solve(np.eye(len(p_pi)) - self.gamma * p_pi.T, self.start)

    def performance(self, pi: np.ndarray) -> float:
        """Compute the expected discounted return J(π) = E V^π(s_0)."""
        return float(self.start @ self.value(pi))

    def distance(self, pi: np.ndarray, other: np.ndarray) -> Float[np.ndarray, "states"]:
        """Compute ‖π(s) − π'(s)‖; for stochastic policies, the mean distance between independent samples of the two."""
        distance: np.ndarray = np.einsum("si,sj,ij->s", pi, other, self._distances())
        return distance

    def lipschitz_p(self) -> float:
        """Return the smallest L_P with ½‖P(·|s, a) − P(·|s, a')‖₁ ≤ L_P‖a − a'‖."""
        variation = 0.5 * np.abs(self.transition[:, :, None] - self.transition[:, None]).sum(-1)
        return self._steepest(variation)

    def lipschitz(self, table: np.ndarray) -> float:
        """Return the Lipschitz constant in the action for a table [states, actions], such as Q^π or the reward."""
        return self._steepest(np.abs(table[:, :, None] - table[:, None]))

    def _distances(self) -> np.ndarray:
        distances: np.ndarray = np.linalg.norm(self.actions[:, None] - self.actions[None], axis=-1)
        return distances

    def _steepest(self, change: np.ndarray) -> float:
        apart = ~np.eye(len(self.actions), dtype=bool)
        return float((change[:, apart] / self._distances()[apart]).max())


def performance_difference(mdp: FiniteMDP, pi_1: np.ndarray, pi_2: np.ndarray) -> float:
    """Compute J(π_1) − J(π_2) by the performance-difference lemma, an identity:

    J(π_1) − J(π_2) = 1/(1−γ) · E_{s∼d_{π_1}}[E_{a∼π_1} Q^{π_2}(s, a) − V^{π_2}(s)]
    """
    advantage = (pi_1 * mdp.q(pi_2)).sum(1) - mdp.value(pi_2)
    return float(mdp.visitation(pi_1) @ advantage) / (1 - mdp.gamma)


def visitation_constant(gamma: Number) -> Number:
    """Return C = 2γ/(1 − γ), the constant that the paper leaves unspecified. No smaller constant holds for all MDPs.

    It follows from d_π − d_β = γ·(I − γP_π^⊤)⁻¹(P_π − P_β)^⊤ d_β and ‖·‖₁ = 2·TV.
    """
    return 2 * gamma / (1 - gamma)


def visitation_bound(distance: Number, l_p: Number, gamma: Number) -> Number:
    """Return the bound of the visitation lemma:  ‖d_π − d_β‖₁ ≤ C·L_P·max_s ‖π(s) − π_β(s)‖.

    The proof also holds for a smaller `distance`: the *mean* of ‖π(s) − π_β(s)‖ over d_β (but not over any other
    distribution).
    """
    return visitation_constant(gamma) * l_p * distance


def step_sup_upper_bound(delta_l_inf: Number, c_inf: Number) -> Number:
    """Return the bound of the sup-norm lemma:  x∞ ≤ (c∞ + √(c∞² + ΔL∞))²."""
    return step_upper_bound(delta_l_inf, c_inf)


# ---------------------------------------------------------------------------------------------------------------
# Proposition 2 and Theorem 1 (appendix A.2, A.3): a single step
# ---------------------------------------------------------------------------------------------------------------


def kappa(l_p: Number, l_q: Number, gamma: Number) -> Number:
    """Return κ = C·L_P·L_Q, where L_Q is the Lipschitz constant of the true Q^{π_t}."""
    return visitation_constant(gamma) * l_p * l_q


def phi_of_step(x_inf: Number, c_inf: Number) -> Number:
    """Return Φ/κ before the sup-norm lemma is applied:  (√x∞ + c∞)·√x∞. It vanishes with the step size."""
    return (x_inf**0.5 + c_inf) * x_inf**0.5


def phi(delta_l_inf: Number, c_inf: Number) -> Number:
    """Return Φ(ΔL∞, c∞²)/κ = 3c∞² + 3c∞√(c∞² + ΔL∞) + ΔL∞.

    This is `phi_of_step` at the largest x∞ that the sup-norm lemma allows. It is 6c∞² even for a step of zero.
    """
    return 3 * c_inf**2 + 3 * c_inf * (c_inf**2 + delta_l_inf) ** 0.5 + delta_l_inf


def phi_sharp(delta_l_inf: Number, c_inf: Number) -> Number:
    """Return a smaller Φ/κ for which Proposition 2 also holds (not in the paper):  c∞² + c∞√(c∞² + ΔL∞) + ΔL∞.

    The paper's proof bounds ‖π_{t+1} − π_β‖ by √x∞ + c∞, although by definition it is at most √(c∞² + ΔL∞).
    """
    return c_inf**2 + c_inf * (c_inf**2 + delta_l_inf) ** 0.5 + delta_l_inf


def single_step_lower_bound(delta_q: Number, kappa_phi: Number, gamma: Number) -> Number:
    """Return the bound of Proposition 2:  J(π_{t+1}) − J(π_t) ≥ (ΔQ − Φ)/(1 − γ).

    ΔQ uses the true Q^{π_t} over D = d_β.
    """
    return (delta_q - kappa_phi) / (1 - gamma)


def kappa_star(delta_q: Number, delta_l_inf: Number, c_inf: Number) -> Number:
    """Return κ* = ΔQ / (3c∞² + 3c∞√(c∞² + ΔL∞) + ΔL∞). Theorem 1's condition ΔQ ≥ Φ holds exactly for κ ≤ κ*.

    κ* is negative if ΔQ is negative; then no κ satisfies the condition. It is undefined if c∞ = ΔL∞ = 0.
    """
    return delta_q / phi(delta_l_inf, c_inf)


# -- the Taylor step that leads to L3 ---------------------------------------------------------------------------


def phi_taylor(delta_l_inf: Number, c_inf: Number) -> Number:
    """Return Φ/κ to second order in ΔL∞/c∞²:  6c∞² + (5/2)·ΔL∞ − (3/8)·ΔL∞²/c∞². It never exceeds Φ/κ."""
    return 6 * c_inf**2 + 2.5 * delta_l_inf - 0.375 * delta_l_inf**2 / c_inf**2


def phi_squared_taylor(delta_l_inf: Number, c_inf: Number) -> Number:
    """Return the square of Φ/κ to first order:  36c∞⁴ + 30c∞²ΔL∞. It never exceeds Φ²/κ²."""
    return 36 * c_inf**4 + l3_of_taylor(delta_l_inf, c_inf, w=30)


def l3_of_taylor(delta_l_inf: Number, c_inf: Number, w: Number = 1) -> Number:
    """Return Φ² without the constant 36c∞⁴:  w·c∞²·ΔL∞ with w = 30κ².

    With w = 1 and multiplied by (ΔQ)², this is the paper's L3, equation (8). A small value does not imply
    Theorem 1's condition.
    """
    return w * c_inf**2 * delta_l_inf


# ---------------------------------------------------------------------------------------------------------------
# Theorem 2 (appendix A.4): the gap to the optimal policy
# ---------------------------------------------------------------------------------------------------------------


def initial_gap_bound(
    eps_beta: Number, eps_0: Number, l_p: Number, r_max: Number, gamma: Number, l_r: Number = 0
) -> Number:
    """Return Δ_0, a bound on J(π*) − J(π_0):  (C·L_P·R_max + L_r)/(1 − γ) · (ε_β + ε_0).

    Here, ε_β = max_s ‖π*(s) − π_β(s)‖ and ε_0 = max_s ‖π_0(s) − π_β(s)‖ are maxima over states. For ε_0 the paper uses
    the mean E_D ‖π_0(s) − π_β(s)‖ ≤ √L_BC, which does not bound the maximum; docs/theory.md discusses when the result
    still holds. The paper's reward depends only on the state (L_r = 0). A reward that depends on the action, with
    Lipschitz constant L_r, needs the second term.
    """
    return (visitation_constant(gamma) * l_p * r_max + l_r) / (1 - gamma) * (eps_beta + eps_0)


def gap_bound(delta_0: Number, gains: Number) -> Number:
    """Return the bound of Theorem 2:  J(π*) − J(π_T) ≤ Δ_0 − Σ_i δ_i.

    The δ_i = J(π_{i+1}) − J(π_i) are the gains of all T steps. If every δ_i ≥ δ_min, this is at most Δ_0 − T·δ_min.
    Since the gap is never negative, T ≤ Δ_0/δ_min.
    """
    return delta_0 - gains.sum()


# ---------------------------------------------------------------------------------------------------------------
# The monitor: the theory's quantities on one batch of a run
# ---------------------------------------------------------------------------------------------------------------


class FixedActions(eqx.Module):
    """An actor that returns given actions, so that a base's Q(s, π(s)) becomes a function of the action."""

    actions: Float[Array, "batch act"]

    def __call__(self, *_: Any) -> Float[Array, "batch act"]:
        return self.actions


def can_monitor(algorithm: Algorithm[Any]) -> bool:
    """Return whether the algorithm, or its base, is a `ScalableAlgorithm`, whose pieces the monitor evaluates."""
    return isinstance(algorithm.unwrapped, ScalableAlgorithm)


def monitor(algorithm: Algorithm[Any], state: Any, batch: Batch, noise: Noise, parts: Parts) -> Metrics:
    """Take one update on a batch, return the theory's quantities, and discard the new state.

    Q is the critic that the base algorithm's actor maximizes, evaluated after the critic's update as in training. All
    columns are returned if the inner step updates a policy with one action per state. If it updates anything else (the
    critics in CQL, the samplers in Diffusion-QL and FQL, the policies of discrete algorithms), only the changes of Q
    and of the base's own constraint are returned.
    """
    # A step changes Q by a relative amount of 1e-4 or less, which is below the error of TF32 products on recent GPUs.
    with jax.default_matmul_precision("highest"):
        return _monitor(algorithm, state, batch, noise, parts)


def _monitor(algorithm: Algorithm[Any], state: Any, batch: Batch, noise: Noise, parts: Parts) -> Metrics:
    if isinstance(algorithm, LearnedScale):
        base, base_state, scale = algorithm.base, state.base, state.scale.scale
        batch, noise, _ = algorithm.split_inputs(batch, noise)
    else:
        assert isinstance(algorithm, ScalableAlgorithm)
        base, base_state, scale = algorithm, state, algorithm.scale
    ctx = base.prepare(base_state, batch, noise, parts)
    inner = base.inner_step(ctx, scale)
    if not isinstance(inner.params, DeterministicActor | GaussianActor):
        after = base.outer_terms(ctx, inner.params, scale)
        q = base.outer_terms(ctx, base.inner_params(ctx.state), scale).q if inner.q is None else inner.q
        return {
            "theory_delta_q": after.q.mean() - q.mean(),
            "theory_delta_l_bc": jnp.abs(after.constraint.mean() - inner.constraint.mean()),
            "theory_delta_l_inf": jnp.abs(after.constraint - inner.constraint).max(),
        }

    def q_of(actions: Array) -> Array:
        terms: OuterTerms = base.outer_terms(ctx, FixedActions(actions), scale)
        return terms.q

    pi, pi_next = (actor(batch.observations) for actor in (base.inner_params(ctx.state), inner.params))
    q, pull_back = jax.vjp(q_of, pi)
    (slope,) = pull_back(jnp.ones_like(q))  # ∂Q/∂a at (s, π_t(s)): a row's Q depends only on the action of that row
    return observed(pi, pi_next, batch.actions, q, q_of(pi_next), slope)


def observed(
    pi: Float[Array, "batch act"],
    pi_next: Float[Array, "batch act"],
    actions: Float[Array, "batch act"],
    q: Float[Array, "batch"],
    q_next: Float[Array, "batch"],
    slope: Float[Array, "batch act"],
) -> Metrics:
    """Compute the monitor's columns from policies, Q and ∂Q/∂a on the rows of a batch."""
    bc, bc_next = (jnp.square(p - actions).sum(-1) for p in (pi, pi_next))
    moved = jnp.square(pi_next - pi).sum(-1)
    delta_q, delta_l_bc = (q_next - q).mean(), jnp.abs((bc_next - bc).mean())
    c, c_inf = jnp.sqrt(bc.mean()), jnp.sqrt(bc.max())
    delta_l_inf = jnp.abs(bc_next - bc).max()
    # Two lower bounds on L_Q: the steepest slope, and √(E(q_next − q)²/x), with which Proposition 1 holds on this
    # batch. The largest |q_next − q|/‖π_{t+1} − π_t‖ would be a third, but rounding dominates it for rows that hardly
    # move.
    secant = jnp.sqrt(_ratio(jnp.square(q_next - q).mean(), moved.mean()))
    l_q = jnp.maximum(jnp.sqrt(jnp.square(slope).sum(-1).max()), secant)
    return {
        "theory_delta_q": delta_q,
        "theory_delta_l_bc": delta_l_bc,
        "theory_delta_l_inf": delta_l_inf,
        "theory_c": c,
        "theory_c_inf": c_inf,
        "theory_x_inf": moved.max(),
        "theory_l_q": l_q,
        "theory_prop1_upper": _ratio(delta_q**2, delta_q_squared_upper_bound(delta_l_bc, c, l_q)),
        "theory_prop1_lower": _ratio(delta_l_bc_lower_bound(delta_q, c, l_q), delta_l_bc),
        "theory_kappa_star": kappa_star(delta_q, delta_l_inf, c_inf),
    }


def _ratio(above: Array, below: Array) -> Array:
    """Compute above/below, or 0 if above is 0, as after a step that changed nothing."""
    return jnp.where(above == 0, 0, above / jnp.where(above == 0, 1, below))
