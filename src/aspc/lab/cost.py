"""Estimates of a plan's cost: its groups and steps, and the hours that they take at measured rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aspc import algorithms, tasks
from aspc.errors import AspcError, unknown_name
from aspc.lab.groups import RunGroup
from aspc.lab.plan import preset_name

ENVIRONMENT_STEPS_PER_SECOND = 5_000  # typical for a policy in a MuJoCo locomotion task on one core
DEFAULT_HORIZON = 1000
SIMILAR_COST = {
    "aspc": "td3_bc",
    "aspc_averaged": "aspc",
    "aspc_aw": "aspc",
    "td3_bc_aw": "td3_bc",
    "aspc_plus": "aspc",
    **dict.fromkeys(("mcep", "rapo", "td3_bc_two_policies"), "aspc_plus"),  # these also train a second policy
}


class Rates(NamedTuple):
    """Total training steps per second over all runs on one device, by algorithm."""

    by_algo: dict[str, float]
    other: float | None
    """The rate to assume for algorithms that were not measured."""

    @classmethod
    def parse(cls, words: Sequence[str]) -> Rates:
        """Parse the values of --rate.

        Args:
            words: Each word is a number (for all algorithms), ALGO=NUMBER, or a JSON file from `benchmarks/` or
                `aspc speed --json`. Combined with a file, ALGO=NUMBER also scales the file's other rates by the same
                factor.
        """
        given: dict[str, float] = {}
        measured: dict[str, float] = {}
        other = None
        for word in words:
            algo, equals, value = word.rpartition("=")
            if (rate := _parse_number(value)) is not None:
                if not rate > 0:
                    raise AspcError(f"--rate must be above 0 (steps per second), not {word}.")
                if equals and algo not in algorithms.names():
                    raise unknown_name("algorithm (--rate)", algo, algorithms.names())
                if equals:
                    given[algo] = rate
                else:
                    other = rate
            else:
                measured |= _read_rates(Path(word))
        factors = [rate / known for algo, rate in given.items() if (known := cls(measured, None).of(algo))]
        if factors:
            measured = {algo: rate * max(factors) for algo, rate in measured.items()}
        return cls({**measured, **given}, other)

    def of(self, algo: str) -> float | None:
        """Return an algorithm's rate or, if it was not measured, the rate of its base or of a similar algorithm."""
        if algo in self.by_algo:
            return self.by_algo[algo]
        base = SIMILAR_COST.get(algo, algo.removesuffix("+aspc"))
        return self.other if base == algo else self.of(base)


class CostLine(NamedTuple):
    """The cost of one algorithm."""

    algo: str
    groups: int
    runs: int
    steps: int
    rate: float | None

    @property
    def hours(self) -> float | None:
        """Hours on one device, if the rate is known."""
        return None if self.rate is None else self.steps / self.rate / 3600


def compute_costs(groups: Sequence[RunGroup], rates: Rates | None) -> list[CostLine]:
    """Return the cost of each algorithm, in the order in which the algorithms appear in the groups."""
    lines = []
    for algo in dict.fromkeys(group.members[0].run.algo for group in groups):
        own = [group for group in groups if group.members[0].run.algo == algo]
        runs, steps = sum(len(g.members) for g in own), sum(g.steps for g in own)
        lines.append(CostLine(algo, len(own), runs, steps, None if rates is None else rates.of(algo)))
    return lines


class EvaluationCost(NamedTuple):
    """The cost of evaluations, which run on CPU cores."""

    episodes: int
    environment_steps: int
    """An upper bound: episodes can end early."""

    @property
    def core_hours(self) -> float:
        """Hours on one core."""
        return self.environment_steps / ENVIRONMENT_STEPS_PER_SECOND / 3600


def compute_evaluation_cost(groups: Sequence[RunGroup]) -> EvaluationCost:
    """Count the episodes and environment steps of all evaluations."""
    episodes = steps = 0
    for run in (member.run for group in groups for member in group.members):
        options = run.train_options()
        intermediate = -(-run.steps // options.eval_every) - 1
        own = intermediate * options.eval_episodes + (options.final_episodes or options.eval_episodes)
        family = tasks.family_facts(preset_name(run.dataset))
        episodes += own
        steps += own * (family.horizon if family else DEFAULT_HORIZON)
    return EvaluationCost(episodes, steps)


def format_costs(lines: Sequence[CostLine], devices: int) -> str:
    """Return a table of costs, with totals for one device and for `devices` devices that train groups in parallel."""
    has_rates = any(line.rate is not None for line in lines)
    times = f" {'steps/s':>9s} {'hours':>8s}" if has_rates else ""
    out = [f"  {'algorithm':18s} {'groups':>6s} {'runs':>6s} {'steps':>15s}{times}"]
    for line in [*lines, _total(lines)]:
        rate = "" if line.rate is None else f"{line.rate:,.0f}"
        hours = "" if line.hours is None else f"{line.hours:,.1f}"
        out.append(
            f"  {line.algo:18s} {line.groups:6,d} {line.runs:6,d} {line.steps:15,d} {rate:>9s} {hours:>8s}".rstrip()
        )
    if not has_rates:
        out.append(
            "  To estimate the time, pass --rate with steps per second (--rate 70000) or a file from aspc speed --save."
        )
    known = [line.hours for line in lines if line.hours is not None]
    unknown = [line.algo for line in lines if line.hours is None]
    if known:
        shared = f"; {sum(known) / devices:,.1f} on {devices}" if devices > 1 else ""
        out.append(f"  {sum(known):,.1f} hours on one device{shared}.")
    if known and unknown:
        out.append(f"  Not included, because no rate is known: {', '.join(unknown)}.")
    return "\n".join(out)


def _total(lines: Sequence[CostLine]) -> CostLine:
    return CostLine("all", sum(x.groups for x in lines), sum(x.runs for x in lines), sum(x.steps for x in lines), None)


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _read_rates(path: Path) -> dict[str, float]:
    """Return the highest rate of each algorithm in a file of measurements."""
    try:
        content = json.loads(path.read_text())
        rows = content if isinstance(content, list) else content.get("speeds", [content])
        rates: dict[str, float] = {}
        for row in rows:
            rates[row["algo"]] = max(rates.get(row["algo"], 0.0), float(row["steps_per_second"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise AspcError(
            f"{path} is neither a number nor a JSON file with algo and steps_per_second ({type(error).__name__}). "
            "Pass steps per second (--rate 70000 or --rate aspc=70000) or a file from aspc speed --save."
        ) from error
    return rates
