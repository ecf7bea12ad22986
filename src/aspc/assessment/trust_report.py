"""A policy looked at from all sides that a log allows: what is measured, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aspc.assessment import trust_measures
from aspc.assessment.fqe import act_on_device, check_fits
from aspc.assessment.returns import MISSING_TOLERATED, returns_to_go
from aspc.assessment.trained_runs import Trained, home_of
from aspc.data import Dataset
from aspc.errors import AspcError
from aspc.policy import Policy
from aspc.training.run_folder import CONFIG, Run, read_json

Level = Literal["good", "look", "worry", "unknown"]

NEIGHBOURS = 10
REFERENCES = 50_000  # logged states among which neighbours are sought
THEORY_BATCHES = 16

# Where "good" ends and "look" ends. They are rules of thumb; docs/trust.md says what each number means.
FAR_STATES = (0.20, 0.50)  # share of states where the policy is farther from the data than 95 % of the data is
BIAS = (1.0, 3.0)  # of Q, in standard deviations of the logged returns
IMPOSSIBLE = (0.001, 0.05)  # share of Q(s, π(s)) that no policy can have
DISAGREEMENT = (0.5, 1.0)  # of the critics at π(s) in 95 % of the states, in standard deviations of Q over states
SATURATION = (0.10, 0.40)  # share of the policy's actions at a bound beyond that of the data's


@dataclass(frozen=True)
class Finding:
    """One thing to know about the policy."""

    level: Level
    about: str
    text: str


@dataclass(frozen=True, eq=False)
class Report:
    """All that was measured: numbers for people and programs, arrays for pictures."""

    facts: list[tuple[str, str]]
    findings: list[Finding]
    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    action_names: tuple[str, ...] = ()
    """The log's columns, where they are known."""

    @property
    def verdict(self) -> str:
        """One sentence in plain words."""
        named = {level: [f.about for f in self.findings if f.level == level] for level in ("worry", "look", "unknown")}
        if named["worry"]:
            return f"Do not rely on this policy before you have looked at: {', '.join(named['worry'] + named['look'])}."
        if named["look"]:
            return f"No alarm, but look at: {', '.join(named['look'])}."
        unknown = f" (not checked: {', '.join(named['unknown'])})" if named["unknown"] else ""
        return f"Nothing here speaks against this policy{unknown}; that is no proof of it."


def level_of(value: float, limits: tuple[float, float]) -> Level:
    return "good" if value <= limits[0] else "look" if value <= limits[1] else "worry"


def highest(levels: list[Level]) -> Level:
    """The one of most concern."""
    return max(levels, key=("good", "look", "worry").index)


# ---------------------------------------------------------------------------------------------------------------
# The policy and its run
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Subject:
    """What is looked at: a policy, data, and (where a run with a checkpoint is there) critics."""

    name: str
    policy: Policy
    dataset: Dataset
    rows: np.ndarray  # of the dataset: the states that are looked at
    actions: np.ndarray  # π(s) at these rows, in ±1
    trained: Trained | None
    state: Any  # of the chosen seed; None without a checkpoint
    why_no_state: str = ""

    @classmethod
    def of(cls, folder: Path, dataset: Dataset, states: int = 2_000) -> Subject:
        """The policy in a folder of its own, at `states` random rows of the dataset."""
        if states < 1:
            raise AspcError(f"--states must be at least 1, not {states}.")
        policy = Policy.load(folder)
        name = "/".join(part for part in folder.absolute().parts[-3:] if part != "policy")
        check_fits(name, policy, dataset)
        # In the policy's units, which its critics learned in too, whatever bounds other data have.
        dataset = replace(dataset, action_low=policy.action_low, action_high=policy.action_high)
        rng = np.random.default_rng(0)
        rows = np.sort(rng.choice(len(dataset), min(states, len(dataset)), replace=False))
        actions = dataset.scale_actions(act_on_device(policy, dataset.observations[rows], rng))
        trained, state, why = _state_of(folder, policy, dataset)
        return cls(name, policy, dataset, rows, actions, trained, state, why)

    @property
    def observations(self) -> np.ndarray:
        return self.dataset.observations[self.rows]

    @property
    def logged(self) -> np.ndarray:
        """The logged actions at the rows, in ±1."""
        return self.dataset.scale_actions(self.dataset.actions[self.rows])

    @property
    def critics(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
        """Q [critics, rows] of observations and actions in ±1; None where the algorithm has no Q."""
        from aspc.training.packed_table import Normaliser

        found = getattr(getattr(self.state, "base", self.state), "critics", None)
        if found is None:
            return None
        normalise = Normaliser(self.policy.observation_mean, self.policy.observation_std)
        return lambda s, a: np.asarray(found(normalise(s), a.astype(np.float32)), np.float64)

    def seed(self) -> int:
        return int(self.policy.info.get("seed", 0))


def _state_of(folder: Path, policy: Policy, dataset: Dataset) -> tuple[Trained | None, Any, str]:
    """The state that a saved policy was taken from, or why there is none."""
    home = home_of(folder)
    if home is None or "members" in read_json(home / CONFIG):
        return None, None, "this is a policy without a run's folder around it, so there are no critics to look at"
    trained = Trained.of(Run(home), dataset)
    steps = trained.checkpoint_steps()
    seed, step = policy.info.get("seed"), policy.info.get("step")
    if step not in steps or seed not in trained.run.seeds:
        return trained, None, f"the run keeps no checkpoint of step {step}, so there are no critics to look at"
    from aspc.training.compiled_loop import at

    state = at(trained.states([step])[step], trained.run.seeds.index(seed))
    return trained, state, ""


# ---------------------------------------------------------------------------------------------------------------
# The report
# ---------------------------------------------------------------------------------------------------------------


def inspect_subject(subject: Subject, say: Callable[[str], None] = lambda text: None) -> Report:
    """Look at a policy from all sides; `say` is told of each."""
    findings: list[Finding] = []
    numbers: dict[str, Any] = {}
    arrays = {"policy_actions": subject.actions, "data_actions": subject.logged}
    for look in (distance, saturated, values, disagreeing, theory):
        say(f"looking at: {look.__name__}")
        finding, found, pictured = look(subject)
        findings.append(finding)
        numbers[look.__name__] = found
        arrays |= pictured
    return Report(facts(subject), findings, numbers, arrays, action_names(subject.policy))


def action_names(policy: Policy) -> tuple[str, ...]:
    """The log's columns, where the policy's file says them as it should."""
    names: Any = policy.info.get("action_names")
    fit = isinstance(names, list) and len(names) == policy.action_size and all(isinstance(n, str) for n in names)
    return tuple(names) if fit else ()


Look = tuple[Finding, dict[str, Any], dict[str, np.ndarray]]


def facts(subject: Subject) -> list[tuple[str, str]]:
    info = subject.policy.info
    rows = [
        ("policy", subject.name),
        ("algorithm", str(info.get("algo", "unknown"))),
        ("trained on", str(info.get("dataset", "unknown"))),
        ("steps", f"{info['step']:,}" if isinstance(info.get("step"), int) else "unknown"),
        ("looked at with", f"{subject.dataset.name}: {len(subject.rows):,} of {len(subject.dataset):,} logged states"),
    ]
    if subject.trained is not None and not subject.trained.same_data:
        rows.append(("note", "this is not, row by row, the data that the run was trained on"))
    return rows


def distance(subject: Subject) -> Look:
    """How far the policy's actions lie from what was logged in similar states."""
    data = subject.dataset
    rng = np.random.default_rng(1)
    references = np.sort(rng.choice(len(data), min(REFERENCES, len(data)), replace=False))
    if len(references) < 2:
        return Finding("unknown", "distance", "one row of data has no neighbour to compare with."), {}, {}
    scale = data.observations.std(0, dtype=np.float64) + 1e-6
    at, near = (data.observations[rows] / scale for rows in (subject.rows, references))
    found, apart = trust_measures.nearest(at, near, NEIGHBOURS, same=(subject.rows, references))
    neighbours = data.scale_actions(data.actions[references])[found]
    policy = trust_measures.distance_to_actions(subject.actions, neighbours)
    logged = trust_measures.distance_to_actions(subject.logged, neighbours)
    far = trust_measures.share_beyond(policy.total, logged.total)
    times = float(np.median(policy.total) / max(np.median(logged.total), 1e-9))
    numbers = {
        "share_far": far,
        "policy": trust_measures.summary(policy.total),
        "data": trust_measures.summary(logged.total),
        "policy_by_dimension": policy.by_dimension.mean(0).tolist(),
        "data_by_dimension": logged.by_dimension.mean(0).tolist(),
        "to_logged_action": trust_measures.summary(np.linalg.norm(subject.actions - subject.logged, axis=1)),
        "state_distance": trust_measures.summary(apart[:, -1]),
    }
    text = (
        f"In {100 * far:.0f} % of the states the policy acts farther from the data than 95 % of the logged actions lie "
        f"from each other (5 % would be like the data); its median distance is {times:.2g} times the data's own."
    )
    arrays = {"policy_distance": policy.total, "data_distance": logged.total}
    arrays |= {"policy_by_dimension": policy.by_dimension, "data_by_dimension": logged.by_dimension}
    return Finding(level_of(far, FAR_STATES), "distance from the data", text), numbers, arrays


def saturated(subject: Subject) -> Look:
    """Actions at their bounds."""
    policy, data = trust_measures.saturation(subject.actions), trust_measures.saturation(subject.logged)
    excess = policy - data
    d = int(excess.argmax())
    text = (
        f"Dimension {d} is at a bound in {100 * policy[d]:.0f} % of the states, the data in {100 * data[d]:.0f} %."
        if excess[d] > 0
        else "The policy drives no dimension to its bounds more often than the data does."
    )
    numbers = {"policy": policy.tolist(), "data": data.tolist()}
    finding = Finding(level_of(float(excess[d]), SATURATION), "saturation", text)
    return finding, numbers, {"policy_saturation": policy, "data_saturation": data}


def values(subject: Subject) -> Look:
    """Q against the returns that were logged."""
    from aspc.assessment.fqe import attainable
    from aspc.training.prepared_data import discount_of, prepared_rewards, preprocessing_of

    about = "over-estimation"
    if (critics := _critics_or_why(subject, about)) is None or isinstance(critics, Finding):
        return critics or _no_q(subject, about), {}, {}
    assert subject.trained is not None
    algorithm, data = subject.trained.algorithm, subject.dataset
    discount = discount_of(algorithm)
    rewards = prepared_rewards(data, preprocessing_of(algorithm))
    to_go = returns_to_go(data, discount, rewards)
    shown = to_go.trusted[subject.rows]
    limits = attainable(rewards, bool(data.terminals.any()), discount)
    q_policy = critics(subject.observations, subject.actions).mean(0)
    too_low, impossible = trust_measures.shares_outside(q_policy, limits)
    numbers: dict[str, Any] = {
        "discount": discount,
        "q_of_policy": trust_measures.summary(q_policy),
        "attainable": list(limits),
        "impossible": impossible,
        "too_low": too_low,
        "states_with_return": int(shown.sum()),
        "missing_tolerated": MISSING_TOLERATED,
    }
    impossible_text = f"{100 * impossible:.1f} % of Q(s, π(s)) is above what the logged rewards allow"
    levels = [level_of(impossible, IMPOSSIBLE)]
    if too_low > IMPOSSIBLE[0]:  # critics begin near 0, so with rewards above 0 they come from below
        impossible_text += f", and {100 * too_low:.1f} % below all that they allow: train longer, it has not settled"
        levels.append("look")
    if shown.sum() < 10:
        text = f"{impossible_text}; no return is logged whole (all episodes are cut early), so no more can be said."
        return Finding(highest(levels), about, text), numbers, {"q_policy": q_policy}
    q, returns = critics(subject.observations, subject.logged).mean(0)[shown], to_go.returns[subject.rows[shown]]
    found = trust_measures.calibration(q, returns)
    numbers |= trust_measures.as_numbers(found)
    high = found.bias_in_stds if np.isfinite(found.bias_in_stds) else found.bias
    # What is too low is worth a look, but it is no over-estimation.
    levels.append(level_of(high, BIAS) if high > 0 else level_of(-high, (BIAS[0], np.inf)))
    text = (
        f"Q of logged actions is {found.mean_q:.4g} on average, the logged return {found.mean_return:.4g} "
        f"({found.bias_in_stds:+.2g} standard deviations); their correlation is {found.correlation:.2f}. "
        f"{impossible_text}. Q is the learned policy's value: a better policy should have a somewhat higher one."
    )
    return Finding(highest(levels), about, text), numbers, {"q": q, "returns": returns, "q_policy": q_policy}


def disagreeing(subject: Subject) -> Look:
    """Where the critics contradict each other."""
    about = "disagreement of the critics"
    if (critics := _critics_or_why(subject, about)) is None or isinstance(critics, Finding):
        return critics or _no_q(subject, about), {}, {}
    at_policy, at_data = (critics(subject.observations, a) for a in (subject.actions, subject.logged))
    if len(at_policy) < 2:
        return Finding("unknown", about, "the run has a single critic, which cannot disagree."), {}, {}
    spread, usual = trust_measures.disagreement(at_policy), trust_measures.disagreement(at_data)
    scale = float(at_policy.mean(0).std()) or 1.0
    relative = float(np.quantile(spread, 0.95)) / scale
    starts, _ = subject.dataset.episode_bounds
    worst = []
    for i in trust_measures.worst(spread):
        row = int(subject.rows[i])
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        worst.append(
            {
                "row": row,
                "episode": episode,
                "step": row - int(starts[episode]),
                "spread": float(spread[i]),
                "q": float(at_policy[:, i].mean()),
            }
        )
    numbers = {
        "at_policy": trust_measures.summary(spread),
        "at_data": trust_measures.summary(usual),
        "std_of_q": scale,
        "relative": relative,
        "worst": worst,
    }
    text = (
        f"In 95 % of the states the critics are within {relative:.2g} standard deviations of Q at the policy's action "
        f"(median {np.median(spread):.3g}; at logged actions {np.median(usual):.3g})."
    )
    return Finding(level_of(relative, DISAGREEMENT), about, text), numbers, {"spread": spread}


def theory(subject: Subject) -> Look:
    """The paper's bounds on batches of the data (docs/theory.md), at the run's last step."""
    from aspc import theory as paper

    about = "theory"
    if subject.trained is not None and not paper.can_monitor(subject.trained.algorithm):
        return Finding("unknown", about, "This algorithm has no constraint with a scale to monitor."), {}, {}
    columns = logged_theory(subject) if subject.state is None else monitored(subject)
    if not columns:
        return Finding("unknown", about, f"Not computed: {subject.why_no_state}."), {}, {}
    numbers = {name: float(np.median(column)) for name, column in columns.items()}
    if "theory_kappa_star" not in numbers:
        text = f"An inner step changes Q by {numbers['theory_delta_q']:.3g} on the data (the policy samples: no κ*)."
        return Finding("good" if numbers["theory_delta_q"] >= 0 else "look", about, text), numbers, {}
    star = numbers["theory_kappa_star"]
    text = (
        f"An inner step changes Q by {numbers['theory_delta_q']:.3g} on the data; Theorem 1's condition holds for κ up "
        f"to κ* = {star:.2g} (where L_P is infinite, as in deterministic worlds, it says nothing)."
        if star > 0
        else f"An inner step lowers Q on the data (by {-numbers['theory_delta_q']:.3g}): Theorem 1's condition holds "
        "for no κ here. Near the end of training this is common and no alarm by itself."
    )
    return Finding("good" if star > 0 else "look", about, text), numbers, {}


def logged_theory(subject: Subject) -> dict[str, np.ndarray]:
    """The monitor's last rows, where training wrote them (--monitor-every)."""
    metrics = {} if subject.trained is None else subject.trained.run.metrics
    names = [name for name in metrics if name.startswith("theory_")]
    own = metrics["seed"] == subject.seed() if names else np.zeros(0, bool)
    columns = {name: metrics[name][own & np.isfinite(metrics[name])][-THEORY_BATCHES:] for name in names}
    return {name: column for name, column in columns.items() if len(column)}


def monitored(subject: Subject) -> dict[str, np.ndarray]:
    """The monitor's columns on several batches."""
    import jax.numpy as jnp

    from aspc.training.compiled_loop import Loop

    trained = subject.trained
    assert trained is not None
    loop = Loop(trained.algorithm, trained.prepared.spec, trained.prepared.layout, vectorise=False)
    seeds = trained.run.seeds
    runs = trained.runs()
    one = [seeds.index(subject.seed())]
    state = _stacked(subject.state)
    runs = runs._replace(state=None, key=runs.key[jnp.asarray(one)], source=_rows_of(runs.source, one))
    table = jnp.asarray(trained.prepared.rows)
    looks = [loop.theory_on(state, runs, table, jnp.asarray(i)) for i in range(THEORY_BATCHES)]
    return {name: np.asarray([float(look[name][0]) for look in looks]) for name in looks[0]}


def _stacked(state: Any) -> Any:
    import jax

    return jax.tree.map(lambda leaf: leaf[None], state)


def _rows_of(tree: Any, rows: list[int]) -> Any:
    import jax

    return jax.tree.map(lambda leaf: leaf[np.asarray(rows)], tree)


def _critics_or_why(subject: Subject, about: str) -> Any:
    """The critics; a finding that says why there is no checkpoint; None where the algorithm has no Q."""
    if subject.state is None:
        return Finding("unknown", about, f"Not computed: {subject.why_no_state}.")
    return subject.critics


def _no_q(subject: Subject, about: str) -> Finding:
    return Finding("unknown", about, f"{subject.policy.info.get('algo', 'This algorithm')} learns no Q.")
