"""The checks of the trust report. Each compares a policy or its critics with the logs, and describes the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from aspc import theory
from aspc.assessment import trust_measures
from aspc.assessment.critic_convergence import MIN_WIDTH, Convergence, describe_unconverged, measure_convergence
from aspc.assessment.inspected_policy import InspectedPolicy
from aspc.assessment.ranking import value_bounds
from aspc.assessment.returns import MISSING_TOLERANCE, returns_to_go
from aspc.assessment.support import FAR_STATES, LoggedNeighbors
from aspc.data.diagnostics import dimension_label, saturation
from aspc.text import format_number
from aspc.training.compiled_loop import Loop
from aspc.training.prepared_data import prepared_rewards

Level = Literal["good", "look", "worry", "unknown"]

THEORY_BATCHES = 16
VALUES = "values of the critics"  # the topic if Q is neither too high nor too low
MIN_RETURNS = 10  # complete logged returns required for a comparison with Q

# Upper limits of the levels "good" and "look". They are rules of thumb; docs/trust.md explains each quantity.
BIAS = (1.0, 3.0)  # bias of Q, in standard deviations of the logged returns
IMPOSSIBLE = (0.001, 0.05)  # fraction of Q(s, π(s)) above the value of any policy
DISAGREEMENT = (0.5, 1.0)  # 95 % quantile of the critics' spread at π(s), in standard deviations of Q over states
SATURATION = (0.10, 0.40)  # fraction of actions at a bound: the policy's minus the data's


@dataclass(frozen=True)
class TrustCheck:
    """The result of one check: its level of concern, its topic and a sentence."""

    level: Level
    topic: str
    text: str


@dataclass(frozen=True, eq=False)
class Measurement:
    """A check with the numbers and arrays behind it."""

    check: TrustCheck
    numbers: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def grade(value: float, limits: tuple[float, float]) -> Level:
    """Return the level of concern of a value."""
    return "good" if value <= limits[0] else "look" if value <= limits[1] else "worry"


def highest_level(levels: list[Level]) -> Level:
    """Return the level of highest concern."""
    return max(levels, key=("good", "look", "worry").index)


def check_distance(inspected: InspectedPolicy) -> Measurement:
    """Compare the policy's actions with those logged in similar states."""
    topic = "distance from the data"
    if len(inspected.dataset) < 2:
        return Measurement(TrustCheck("unknown", "distance", "This check requires at least two rows of data."))
    support = LoggedNeighbors.of(inspected.dataset, inspected.rows, history=inspected.policy.history).measure(
        inspected.actions
    )
    policy, logged, far, ratio = support.policy, support.data, support.far, support.ratio
    to_logged = np.linalg.norm(inspected.actions - inspected.logged_actions, axis=1)
    numbers = {
        "share_far": far,
        "policy": trust_measures.summarize(policy.total),
        "data": trust_measures.summarize(logged.total),
        "policy_by_dimension": policy.by_dimension.mean(0).tolist(),
        "data_by_dimension": logged.by_dimension.mean(0).tolist(),
        "to_logged_action": trust_measures.summarize(to_logged),
        "state_distance": trust_measures.summarize(support.state_distances),
    }
    text = (
        f"In {100 * far:.0f} % of the states the policy is farther from the data than 95 % of the logged actions "
        f"(5 % for the data itself). Its median distance is {ratio:.2g} times that of the logged actions."
    )
    if support.choices:
        sentence = support.describe()
        text = f"{sentence[0].upper()}{sentence[1:]}. {'. '.join(c.describe() for c in support.choices)}."
        numbers["choices"] = {choice.name: vars(choice) for choice in support.choices}
    arrays = {"policy_distance": policy.total, "data_distance": logged.total}
    arrays |= {"policy_by_dimension": policy.by_dimension, "data_by_dimension": logged.by_dimension}
    return Measurement(TrustCheck(grade(far, FAR_STATES), topic, text), numbers, arrays)


def check_saturation(inspected: InspectedPolicy) -> Measurement:
    """Compare how often the policy's actions and the logged actions are at a bound. Discrete actions have no bounds."""
    log, space = inspected.dataset, inspected.dataset.action_space
    if space is not None and space.is_choice.all():
        return Measurement(TrustCheck("good", "saturation", "Does not apply: all actions are discrete."))
    policy = saturation(log, inspected.actions)
    data = saturation(log, log.scale_actions(log.actions))  # computed on all rows, as in `aspc data info`
    excess = policy - data if space is None else np.where(space.is_choice, -1.0, policy - data)
    d = int(excess.argmax())
    text = (
        f"Dimension {dimension_label(d, inspected.action_names)} is at a bound in {100 * policy[d]:.0f} % of the "
        f"states ({100 * data[d]:.0f} % in the data)."
        if excess[d] > 0
        else "No action is at a bound more often than in the data."
    )
    check = TrustCheck(grade(float(excess[d]), SATURATION), "saturation", text)
    numbers = {"policy": policy.tolist(), "data": data.tolist()}
    return Measurement(check, numbers, {"saturation": np.stack([policy, data])})


def check_values(inspected: InspectedPolicy) -> Measurement:
    """Compare Q with the logged returns, the range of possible values and its own Bellman equation."""
    critics = inspected.critics
    if critics is None or inspected.trained is None:
        return Measurement(TrustCheck("unknown", VALUES, inspected.missing_critics_reason))
    algorithm, data = inspected.trained.algorithm, inspected.dataset
    discount = algorithm.discount
    rewards = prepared_rewards(data, algorithm)
    to_go = returns_to_go(data, discount, rewards)
    is_complete = to_go.is_complete[inspected.rows]
    has_returns = is_complete.sum() >= MIN_RETURNS
    returns = to_go.returns[inspected.rows[is_complete]]
    bounds = value_bounds(rewards, bool(data.terminals.any()), discount)
    q_policy = critics(inspected.observations, inspected.actions).mean(0)
    too_low, impossible = trust_measures.fractions_outside(q_policy, bounds)
    unit = max(float(returns.std()) if has_returns else 0.0, MIN_WIDTH * (bounds[1] - bounds[0]), 1e-9)
    convergence = measure_convergence(inspected, critics, rewards, discount, unit)
    numbers: dict[str, Any] = {
        "discount": discount,
        "q_of_policy": trust_measures.summarize(q_policy),
        "attainable": list(bounds),
        "impossible": impossible,
        "too_low": too_low,
        "states_with_return": int(is_complete.sum()),
        "missing_tolerated": MISSING_TOLERANCE,
        **(convergence.numbers(inspected.seed) if convergence is not None else {}),
    }
    arrays = {"q_policy": q_policy}
    too_high_level = grade(impossible, IMPOSSIBLE)
    # The level of values that are too low is at most "look", never "worry".
    too_low_level: Level = "look" if too_low > IMPOSSIBLE[0] else "good"
    text = f"In {100 * impossible:.1f} % of the states, Q(s, π(s)) is above the possible range for the logged rewards"
    if too_low_level != "good":
        text += f", and in {100 * too_low:.1f} % it is below"
    if has_returns:
        q = critics(inspected.observations, inspected.logged_actions).mean(0)[is_complete]
        found = trust_measures.measure_calibration(q, returns)
        numbers |= {name: float(value) for name, value in found._asdict().items()}
        arrays |= {"q": q, "returns": returns}
        bias = found.bias_in_stds if np.isfinite(found.bias_in_stds) else found.bias
        too_high_level = highest_level([too_high_level, grade(bias, BIAS)])
        too_low_level = highest_level([too_low_level, grade(-bias, (BIAS[0], np.inf))])
        text = (
            f"Q of logged actions is {format_number(found.mean_q)} on average, and the logged return is "
            f"{format_number(found.mean_return)} "
            f"(difference: {found.bias_in_stds:+,.1f} standard deviations; correlation: {found.correlation:.2f}). "
            f"{text}. Q is the value of the learned policy, so it is higher if that policy is better than the log."
        )
    else:
        text += ". Too few logged returns are complete to compare Q with them."
    levels = [too_high_level, too_low_level]
    if convergence is not None and convergence.unconverged:
        levels.append("look")
        text = f"{describe_unconverged(convergence, inspected.seed)} {text}"
    topic = _values_topic(too_high_level, too_low_level, convergence)
    return Measurement(TrustCheck(highest_level(levels), topic, text), numbers, arrays)


def _values_topic(too_high: Level, too_low: Level, convergence: Convergence | None) -> str:
    """Return the topic that names what is wrong with Q."""
    unconverged = None if convergence is None or not convergence.unconverged else convergence
    if too_high == "worry" and not (unconverged is not None and unconverged.is_falling):
        return "over-estimation"  # also for critics that still rise, because they may be diverging
    if unconverged is not None:
        return "convergence of the critics"
    if too_high == "look":
        return "over-estimation"
    return "under-estimation" if too_low == "look" else VALUES


def check_disagreement(inspected: InspectedPolicy) -> Measurement:
    """Measure how much the critics differ at the policy's actions."""
    topic, critics = "disagreement of the critics", inspected.critics
    if critics is None:
        return Measurement(TrustCheck("unknown", topic, inspected.missing_critics_reason))
    at_policy = critics(inspected.observations, inspected.actions)
    at_data = critics(inspected.observations, inspected.logged_actions)
    if len(at_policy) < 2:
        return Measurement(TrustCheck("unknown", topic, "The run has a single critic."))
    spread, spread_at_data = trust_measures.critic_std(at_policy), trust_measures.critic_std(at_data)
    scale = float(at_policy.mean(0).std()) or 1.0
    relative = float(np.quantile(spread, 0.95)) / scale
    starts, _ = inspected.dataset.episode_bounds
    worst = []
    for i in trust_measures.largest_indices(spread):
        row = int(inspected.rows[i])
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        worst.append(
            {
                "row": row + 1,
                "episode": episode + 1,
                "step": row - int(starts[episode]) + 1,
                "spread": float(spread[i]),
                "q": float(at_policy[:, i].mean()),
            }
        )
    numbers = {
        "at_policy": trust_measures.summarize(spread),
        "at_data": trust_measures.summarize(spread_at_data),
        "std_of_q": scale,
        "relative": relative,
        "worst": worst,
    }
    text = (
        f"At the policy's actions, the critics differ by at most {relative:.2g} standard deviations of Q in 95 % of "
        f"the states (median {format_number(float(np.median(spread)))}; at logged actions "
        f"{format_number(float(np.median(spread_at_data)))})."
    )
    return Measurement(TrustCheck(grade(relative, DISAGREEMENT), topic, text), numbers, {"spread": spread})


def check_theory(inspected: InspectedPolicy) -> Measurement:
    """Evaluate the paper's bounds (docs/theory.md) on batches of the data, or take their last logged values."""
    topic = "theory"
    if inspected.trained is not None and not theory.can_monitor(inspected.trained.algorithm):
        return Measurement(TrustCheck("unknown", topic, "This algorithm has no constraint with a scale to monitor."))
    columns = recorded_theory(inspected) if inspected.state is None else evaluate_theory(inspected)
    if not columns:
        return Measurement(TrustCheck("unknown", topic, f"Not computed: {inspected.missing_state_reason}."))
    numbers = {name: float(np.median(column)) for name, column in columns.items()}
    delta_q, kappa = numbers["theory_delta_q"], numbers.get("theory_kappa_star")
    if kappa is None:
        text = (
            f"An inner step changes Q by {format_number(delta_q)} on the data. The policy is stochastic, so κ* is "
            "undefined."
        )
        return Measurement(TrustCheck("good" if delta_q >= 0 else "look", topic, text), numbers)
    text = (
        f"An inner step changes Q by {format_number(delta_q)} on the data. Theorem 1's condition holds for κ up to "
        f"κ* = {kappa:.2g}. The condition is void if L_P is infinite, as in deterministic environments."
        if kappa > 0
        else f"An inner step lowers Q on the data by {format_number(-delta_q)}, so Theorem 1's condition holds for no "
        "κ. This is common near the end of training and is no cause for alarm on its own."
    )
    return Measurement(TrustCheck("good" if kappa > 0 else "look", topic, text), numbers)


def recorded_theory(inspected: InspectedPolicy) -> dict[str, np.ndarray]:
    """Return the last values that training logged with --monitor-every; empty if there are none."""
    metrics = {} if inspected.trained is None else inspected.trained.run.metrics
    names = [name for name in metrics if name.startswith("theory_")]
    is_own = metrics["seed"] == inspected.seed if names else np.zeros(0, bool)
    columns = {name: metrics[name][is_own & np.isfinite(metrics[name])][-THEORY_BATCHES:] for name in names}
    return {name: column for name, column in columns.items() if len(column)}


def evaluate_theory(inspected: InspectedPolicy) -> dict[str, np.ndarray]:
    """Evaluate the columns that --monitor-every logs on several batches."""
    trained = inspected.trained
    assert trained is not None
    prepared = trained.prepared
    loop = Loop(trained.algorithm, prepared.spec, prepared.layout, vectorize=False)
    runs = trained.initial_runs()
    index = jnp.asarray([trained.run.seeds.index(inspected.seed)])
    source = jax.tree.map(lambda leaf: leaf[index], runs.source)
    runs = runs._replace(state=None, key=runs.key[index], source=source)
    state = jax.tree.map(lambda leaf: leaf[None], inspected.state)
    table = jnp.asarray(prepared.rows)
    rows = [loop.theory_metrics(state, runs, table, jnp.asarray(i)) for i in range(THEORY_BATCHES)]
    return {name: np.asarray([float(row[name][0]) for row in rows]) for name in rows[0]}


# Names as in the JSON output.
CHECKS: dict[str, Callable[[InspectedPolicy], Measurement]] = {
    "distance": check_distance,
    "saturated": check_saturation,
    "values": check_values,
    "disagreeing": check_disagreement,
    "theory": check_theory,
}
