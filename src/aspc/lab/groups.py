"""Groups of runs that train together as one program. A group is stored as a small JSON file that any machine can use.

BENCH/
  groups/ID/group.json        the group's runs
  groups/ID/fleet…/           output of its training: curves, policies, checkpoints (`aspc.training.fleet`)
  groups/ID/progress.json     number of steps done so far
  runs/ID.parquet  curves/ID.parquet      its results, once it has finished (`aspc.lab.results`)
  entries/….parquet           the suites that contain each run, and its label in each suite
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from aspc import algorithms, tasks
from aspc.algorithms.interface import Algorithm
from aspc.algorithms.registry import join_bc_term
from aspc.errors import AspcError
from aspc.io import write_atomically
from aspc.lab import results
from aspc.lab.plan import BenchPlan, PlannedRun, preset_name, short_hash
from aspc.text import count_noun
from aspc.training.grouping import group_key

GROUP, PROGRESS = "group.json", "progress.json"


@dataclass(frozen=True)
class GroupMember:
    """One run of a group.

    `file` is the dataset's file, or None for a dataset known by name. If the run depends on another run,
    `scale_target` is the final scale of that run.
    """

    run: PlannedRun
    suite: str
    variant: str
    file: str | None = None
    scale_target: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        found = {} if self.scale_target is None else {"scale_target": self.scale_target}
        return {**self.run.settings, **found}

    def algorithm(self) -> Algorithm[Any]:
        """Return the algorithm with this run's settings."""
        return dataclasses.replace(self.run, settings=self.settings).algorithm()


@dataclass(frozen=True)
class RunGroup:
    """Runs that train together as one program."""

    members: tuple[GroupMember, ...]
    plugin: str | None = None
    """A Python file that registers the runs' algorithms."""
    attempt: int = 0
    """Number of earlier attempts that failed."""
    command: str | None = None
    """The command that requested the group, recorded with its results."""

    @cached_property
    def group_id(self) -> str:
        return short_hash([sorted(self.run_ids), self.attempt])

    @property
    def run_ids(self) -> list[str]:
        return [m.run.run_id for m in self.members]

    @property
    def steps(self) -> int:
        """Total number of steps of all runs."""
        return sum(m.run.steps for m in self.members)

    @property
    def alone(self) -> bool:
        """True if the group is timed and must therefore train alone."""
        return any(m.run.alone for m in self.members)

    @property
    def title(self) -> str:
        """A one-line description."""
        datasets = list(dict.fromkeys(m.run.dataset for m in self.members))
        variants = list(dict.fromkeys(m.variant for m in self.members))
        runs = count_noun(len(self.members), "run")
        return f"{results.abbreviate_list(variants)} on {results.abbreviate_list(datasets)} ({runs})"

    def to_json(self) -> str:
        """Return the JSON text of the group's file."""
        return json.dumps({"format": 1, **dataclasses.asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path | str = GROUP) -> RunGroup:
        """Read a group from the text of its file.

        Raises:
            AspcError: The text is not a valid group. The message names `path`.
        """
        try:
            content = json.loads(text)
            members = [GroupMember(_read_run(m["run"]), *(m[k] for k in _MEMBER_FIELDS)) for m in content["members"]]
            group = cls(tuple(members), content["plugin"], content["attempt"], content.get("command"))
            group.group_id  # noqa: B018  (raises if a run has fields of the wrong type)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AspcError(f"{path} is damaged; remove its folder to restart the group.") from error
        return group


_MEMBER_FIELDS = ("suite", "variant", "file", "scale_target")


def _read_run(content: Mapping[str, Any]) -> PlannedRun:
    """Read a run. Older versions recorded its BC term separately."""
    fields = {name: value for name, value in content.items() if name != "bc"}
    return PlannedRun(**{**fields, "algo": join_bc_term(fields["algo"], content.get("bc", "plain"))})


def make_groups(
    plan: BenchPlan, run_ids: Iterable[str], size: int, data: Mapping[str, Path], plugin: str | None = None
) -> list[RunGroup]:
    """Group runs that can share a program and return the groups in the order of the plan.

    Runs on the same dataset are kept next to each other. A run that needs another run's scale is never in the same
    group as that run.

    Args:
        plan: The plan that contains the runs.
        run_ids: The runs to group.
        size: The maximum number of runs per group.
        data: Dataset files by name.
        plugin: A Python file that registers the runs' algorithms.
    """
    programs: dict[Any, list[GroupMember]] = {}
    for run_id in run_ids:
        run, entry = plan.runs[run_id], plan.first_entry(run_id)
        key = (entry.suite, run.scale_of is None, program_key(run))
        programs.setdefault(key, []).append(GroupMember(run, entry.suite, entry.variant, dataset_file(run, data)))
    groups = []
    for members in programs.values():
        max_size = 1 if members[0].run.alone else size
        # Split evenly: with at most four runs per group, five runs become groups of three and two.
        parts = -(-len(members) // max_size)
        cuts = [round(i * len(members) / parts) for i in range(parts + 1)]
        ordered = sorted(members, key=lambda m: m.run.dataset)
        groups += [RunGroup(tuple(ordered[a:b]), plugin) for a, b in pairwise(cuts)]
    return groups


def interleave_timed_groups(groups: list[RunGroup]) -> list[RunGroup]:
    """Reorder timed groups by dataset and seed, so that changes in the machine's speed affect all variants equally."""
    timed = sorted((g for g in groups if g.alone), key=lambda g: (g.members[0].run.dataset, g.members[0].run.seed))
    following = iter(timed)
    return [next(following) if group.alone else group for group in groups]


def dataset_file(run: PlannedRun, data: Mapping[str, Path]) -> str | None:
    """Return the file of a run's dataset, or None for a dataset known by name."""
    return str(data[run.dataset]) if run.dataset in data else None


def program_key(run: PlannedRun) -> str:
    """Return a key that is equal for runs that are expected to share a program.

    Observation and action sizes are guessed from the dataset's name. If the actual sizes differ, training splits the
    group.
    """
    generic = dataclasses.replace(run, dataset="", seed=0, scale_of=run.scale_of and "any")
    shared = _shared_key(generic.run_id, generic)
    name = algorithms.split_bc_term(run.algo)
    return short_hash([*name, shared, expected_sizes(run.dataset), run.run_id * run.alone])


def expected_sizes(dataset: str) -> tuple[int, int] | str:
    """Return a value that is equal for datasets whose names imply equal observation and action sizes."""
    family = tasks.family_facts(preset_name(dataset))
    if family is not None:
        return family.observation_size, family.action_size
    if not tasks.is_ogbench_task(dataset):
        return dataset
    agent = dataset.split("-")[0]
    return f"OGBench's {agent if agent in tasks.OGBENCH_AGENTS else tasks.ogbench_file_stem(dataset)}"


_SHARED_KEYS: dict[str, Hashable] = {}


def _shared_key(name: str, run: PlannedRun) -> Hashable:
    """Return the part of a program's key that does not depend on the data.

    It is computed once for all runs that differ only in data or seed.
    """
    if name not in _SHARED_KEYS:
        _SHARED_KEYS[name] = group_key(run.algorithm(), (0, 0), run.train_options())
    return _SHARED_KEYS[name]


def group_path(bench: Path, group_id: str) -> Path:
    """Return the folder of a group."""
    return bench / "groups" / group_id


def results_path(bench: Path, group_id: str) -> Path:
    """Return the path of a group's results. The file exists once the group has finished."""
    return bench / "runs" / f"{group_id}.parquet"


def write_group(bench: Path, group: RunGroup) -> None:
    """Write the file that any machine needs to train the group."""
    folder = group_path(bench, group.group_id)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / GROUP, group.to_json().encode())
