"""What a plan will take: groups, steps and hours, from rates that were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aspc import algorithms, tasks
from aspc.errors import AspcError, unknown_name
from aspc.lab.groups import Group
from aspc.lab.plan import name_in_presets

ENVIRONMENT_STEPS_PER_SECOND = 5_000  # of MuJoCo's walkers with a policy, on one core
DEFAULT_HORIZON = 1000
SIMILAR_COST = {
    "aspc": "td3_bc",
    "aspc_averaged": "aspc",
    "aspc_plus": "aspc",
    **dict.fromkeys(("mcep", "rapo", "td3_bc_two_policies"), "aspc_plus"),  # these also train a second policy
}


class Rates(NamedTuple):
    """Steps per second of one device with its runs side by side (all of them together), by algorithm."""

    by_algo: dict[str, float]
    other: float | None
    """For algorithms that were not measured."""

    @classmethod
    def read(cls, words: Sequence[str]) -> Rates:
        """What `--rate` takes: a number for all algorithms; ALGO=NUMBER; a file of `benchmarks/` or `aspc speed
        --json`. With a file, ALGO=NUMBER is a device on which all is faster in the same proportion."""
        given: dict[str, float] = {}
        measured: dict[str, float] = {}
        other = None
        for word in words:
            algo, equals, value = word.rpartition("=")
            if (rate := _number(value)) is not None:
                if not rate > 0:
                    raise AspcError(f"--rate is in steps per second, above 0, not {word}.")
                if equals and algo not in algorithms.names():
                    raise unknown_name("algorithm (--rate)", algo, algorithms.names())
                if equals:
                    given[algo] = rate
                else:
                    other = rate
            else:
                measured |= _measured(Path(word))
        factors = [rate / known for algo, rate in given.items() if (known := cls(measured, None).of(algo))]
        if factors:
            measured = {algo: rate * max(factors) for algo, rate in measured.items()}
        return cls({**measured, **given}, other)

    def of(self, algo: str) -> float | None:
        """The rate of an algorithm; one that was not measured takes that of its base or of a similar one."""
        if algo in self.by_algo:
            return self.by_algo[algo]
        base = SIMILAR_COST.get(algo, algo.removesuffix("+aspc"))
        return self.other if base == algo else self.of(base)


class Line(NamedTuple):
    """What one algorithm takes."""

    algo: str
    groups: int
    runs: int
    steps: int
    rate: float | None

    @property
    def hours(self) -> float | None:
        return None if self.rate is None else self.steps / self.rate / 3600


def costs(groups: Sequence[Group], rates: Rates | None) -> list[Line]:
    """A line for each algorithm, in the order of the groups."""
    lines = []
    for algo in dict.fromkeys(group.members[0].run.algo for group in groups):
        own = [group for group in groups if group.members[0].run.algo == algo]
        runs, steps = sum(len(g.members) for g in own), sum(g.steps for g in own)
        lines.append(Line(algo, len(own), runs, steps, None if rates is None else rates.of(algo)))
    return lines


class Evaluations(NamedTuple):
    """What rolling policies out takes: processor cores, beside the devices that train."""

    episodes: int
    environment_steps: int
    """At most: an episode may end early."""

    @property
    def core_hours(self) -> float:
        return self.environment_steps / ENVIRONMENT_STEPS_PER_SECOND / 3600


def evaluations(groups: Sequence[Group]) -> Evaluations:
    episodes = steps = 0
    for run in (member.run for group in groups for member in group.members):
        options = run.train_options()
        before = -(-run.steps // options.eval_every) - 1
        own = before * options.eval_episodes + (options.final_episodes or options.eval_episodes)
        family = tasks.FAMILIES.get(tasks.family_of(name_in_presets(run.dataset)) or "")
        episodes += own
        steps += own * (family.horizon if family else DEFAULT_HORIZON)
    return Evaluations(episodes, steps)


def table(lines: Sequence[Line], devices: int) -> str:
    """The costs as text. With several devices the groups are shared out, so the hours are those of the busiest."""
    has_rates = any(line.rate is not None for line in lines)
    times = f" {'steps/s':>9s} {'hours':>8s}" if has_rates else ""
    out = [f"  {'algorithm':18s} {'groups':>6s} {'runs':>6s} {'steps':>15s}{times}"]
    for line in [*lines, total(lines)]:
        rate = "" if line.rate is None else f"{line.rate:,.0f}"
        hours = "" if line.hours is None else f"{line.hours:,.1f}"
        out.append(
            f"  {line.algo:18s} {line.groups:6,d} {line.runs:6,d} {line.steps:15,d} {rate:>9s} {hours:>8s}".rstrip()
        )
    if not has_rates:
        out.append(
            "  Add --rate to see how long it takes: steps per second (--rate 70000), or a file of aspc speed --json."
        )
    known = [line.hours for line in lines if line.hours is not None]
    unknown = [line.algo for line in lines if line.hours is None]
    if known:
        shared = f"; {sum(known) / devices:,.1f} on {devices}" if devices > 1 else ""
        out.append(f"  {sum(known):,.1f} hours of one device{shared}.")
    if known and unknown:
        out.append(f"  No rate is known for {', '.join(unknown)}, which is not counted.")
    return "\n".join(out)


def total(lines: Sequence[Line]) -> Line:
    return Line("all", sum(x.groups for x in lines), sum(x.runs for x in lines), sum(x.steps for x in lines), None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _measured(path: Path) -> dict[str, float]:
    try:
        content = json.loads(path.read_text())
        rows = content if isinstance(content, list) else content.get("speeds", [content])
        rates: dict[str, float] = {}
        for row in rows:  # of several measurements (of more and more runs together) the best is what a device can do
            rates[row["algo"]] = max(rates.get(row["algo"], 0.0), float(row["steps_per_second"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise AspcError(
            f"--rate takes steps per second (70000, or aspc=70000), or a JSON file with algo and steps_per_second; "
            f"{path} is neither ({type(error).__name__})."
        ) from error
    return rates
