"""Groups: runs that train together as one program. A group is a small JSON file; any machine can run it from that.

BENCH/
  groups/ID/group.json        what the group is
  groups/ID/fleet…/           its training: curves, policies, checkpoints (`aspc.training.fleet`)
  groups/ID/progress.json     how far it is
  runs/ID.parquet  curves/ID.parquet      its results, once it has ended (`aspc.lab.results`)
  entries/….parquet           which runs belong to which suite, under which label
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from aspc import plugins, tasks
from aspc.data import Dataset, files
from aspc.data.sources import ogbench
from aspc.errors import AspcError, ExternalFailure
from aspc.io import write_atomically
from aspc.lab import results
from aspc.lab.plan import Plan, PlannedRun, name_in_presets, short_hash
from aspc.training.run_config import fingerprint, flat_values, to_plain
from aspc.training.run_folder import RESULT

if TYPE_CHECKING:
    from aspc.training.fleet import Fleet

GROUP, PROGRESS = "group.json", "progress.json"
MOST_POINTS = 100  # of a run's curves besides its evaluations
PROGRESS_SECONDS = 2.0
LOCK_SECONDS = 300.0  # that a dying process of the same group is waited for

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Member:
    """A run of a group: where it belongs, the file of its dataset (None: known by name), and a scale found before."""

    run: PlannedRun
    suite: str
    variant: str
    file: str | None = None
    scale_target: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        found = {} if self.scale_target is None else {"scale_target": self.scale_target}
        return {**self.run.settings, **found}

    def algorithm(self) -> Any:
        return dataclasses.replace(self.run, settings=self.settings).algorithm()


@dataclass(frozen=True)
class Group:
    members: tuple[Member, ...]
    plugin: str | None = None
    """A Python file that registers what the runs need."""
    attempt: int = 0
    """How often the same runs have failed before."""
    command: str | None = None
    """The command that asks for it, to be recorded with its results."""

    @cached_property
    def group_id(self) -> str:
        return short_hash([sorted(self.run_ids), self.attempt])

    @property
    def run_ids(self) -> list[str]:
        return [m.run.run_id for m in self.members]

    @property
    def steps(self) -> int:
        """Steps of all its runs together."""
        return sum(m.run.steps for m in self.members)

    @property
    def alone(self) -> bool:
        """It is timed, so nothing trains beside it."""
        return any(m.run.alone for m in self.members)

    @property
    def title(self) -> str:
        datasets = list(dict.fromkeys(m.run.dataset for m in self.members))
        variants = list(dict.fromkeys(m.variant for m in self.members))
        return f"{results.a_few(variants)} on {results.a_few(datasets)} ({len(self.members)} runs)"

    def to_json(self) -> str:
        return json.dumps({"format": 1, **dataclasses.asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path | str = GROUP) -> Group:
        try:
            content = json.loads(text)
            members = [Member(PlannedRun(**m["run"]), *(m[k] for k in MEMBER_FACTS)) for m in content["members"]]
            group = cls(tuple(members), content["plugin"], content["attempt"], content.get("command"))
            group.group_id  # noqa: B018  (can be computed)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AspcError(f"{path} is damaged; remove its folder, and the group is begun again.") from error
        return group


MEMBER_FACTS = ("suite", "variant", "file", "scale_target")


# ── which runs go together ──────────────────────────────────────────────────────────────────────────────────────────


def make_groups(
    plan: Plan, run_ids: Iterable[str], size: int, data: Mapping[str, Path], plugin: str | None = None
) -> list[Group]:
    """Runs that can be one program, `size` at most, the seeds of a dataset side by side; in the order of the plan.

    A run that waits for another's scale is in another group than that one.
    """
    programs: dict[Any, list[Member]] = {}
    for run_id in run_ids:
        run, entry = plan.runs[run_id], plan.entry_of(run_id)
        key = (entry.suite, run.scale_of is None, program_key(run))
        programs.setdefault(key, []).append(Member(run, entry.suite, entry.variant, file_of(run, data)))
    groups = []
    for members in programs.values():
        most = 1 if members[0].run.alone else size
        # Even shares: 5 runs at most 4 together are 3 and 2.
        parts = -(-len(members) // most)
        cuts = [round(i * len(members) / parts) for i in range(parts + 1)]
        ordered = sorted(members, key=lambda m: m.run.dataset)
        groups += [Group(tuple(ordered[a:b]), plugin) for a, b in pairwise(cuts)]
    return groups


def in_turn(groups: list[Group]) -> list[Group]:
    """Timed runs in the order of datasets and seeds, variants in turn: a machine that gets slower does so for all."""
    timed = sorted((g for g in groups if g.alone), key=lambda g: (g.members[0].run.dataset, g.members[0].run.seed))
    following = iter(timed)
    return [next(following) if group.alone else group for group in groups]


def file_of(run: PlannedRun, data: Mapping[str, Path]) -> str | None:
    return str(data[run.dataset]) if run.dataset in data else None


def program_key(run: PlannedRun) -> str:
    """Runs with the same key are expected to be one program; what is really so is seen when their data is there."""
    anyones = dataclasses.replace(run, dataset="", seed=0, scale_of=run.scale_of and "any")
    shared = _shared_key(anyones.run_id, anyones)
    return short_hash([run.algo, run.bc, shared, likely_sizes(run.dataset), run.run_id * run.alone])


def likely_sizes(dataset: str) -> Any:
    """Equal for datasets whose observations and actions are expected to have the same sizes, judged by their names."""
    family = tasks.FAMILIES.get(tasks.family_of(name_in_presets(dataset)) or "")
    if family is not None:
        return family.observation_size, family.action_size
    if not ogbench.is_single_task(dataset):
        return dataset
    agent = dataset.split("-")[0]
    return f"OGBench's {agent if agent in ogbench.SIZES else ogbench.file_stem(dataset)}"


_SHARED_KEYS: dict[str, Any] = {}


def _shared_key(name: str, run: PlannedRun) -> Any:
    """What runs of one program have in common, but for their data; found once for runs that differ in data or seed."""
    from aspc.training.fleet import group_key

    if name not in _SHARED_KEYS:
        _SHARED_KEYS[name] = group_key(run.algorithm(), (0, 0), run.train_options())
    return _SHARED_KEYS[name]


# ── running one ─────────────────────────────────────────────────────────────────────────────────────────────────────


def group_folder(bench: Path, group_id: str) -> Path:
    return bench / "groups" / group_id


def part_file(bench: Path, group_id: str) -> Path:
    return bench / "runs" / f"{group_id}.parquet"


def write_group(bench: Path, group: Group) -> None:
    folder = group_folder(bench, group.group_id)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / GROUP, group.to_json().encode())


def run_group(bench: Path, group_id: str, quiet: bool = True, on_progress: OnProgress | None = None) -> int | None:
    """Train a group from its file, from where it was; then write its results. Does nothing if they are there.

    What goes wrong in a run, or with its data, is in the results; it does not stop the others. A training that could
    not be ended keeps its checkpoints, and the next attempt goes on from them. A signal to stop that came too late for
    this group is returned, for those after it.
    """
    folder = group_folder(bench, group_id)
    with exclusive_lock(folder):
        if part_file(bench, group_id).exists():
            return None
        group = Group.from_json((folder / GROUP).read_text(errors="replace"), folder / GROUP)
        if group.plugin and group.plugin != getattr(plugins.loaded(), "path", None):
            plugins.load_plugin(group.plugin)
        _adopt(bench, group)
        began = _now()
        rows, curves, late_signal = _trained(group, folder, quiet, _reporter(folder, on_progress))
        facts = {"group_id": group_id, "started": began, "finished": _now(), **_machine_facts()}
        facts["command"] = group.command
        results.write_part(bench, group_id, [{**facts, **row} for row in rows], curves)
        for ended in folder.glob(f"fleet-*/{RESULT}"):
            shutil.rmtree(ended.parent / "checkpoints", ignore_errors=True)  # large, and nothing is left to continue
    return late_signal


def _adopt(bench: Path, group: Group) -> None:
    """What an earlier attempt has trained and could not end becomes this attempt's."""
    if group.attempt == 0:
        return
    before = group_folder(bench, dataclasses.replace(group, attempt=group.attempt - 1).group_id)
    folder = group_folder(bench, group.group_id)
    for fleet in before.glob("fleet-*"):
        if not (fleet / RESULT).exists() and not (folder / fleet.name).exists():
            fleet.rename(folder / fleet.name)


def record_failure(bench: Path, group: Group, error: str, data_fingerprint: str | None = None) -> None:
    """Results of a group that could not be run at all."""
    facts = {"group_id": group.group_id, "started": _now(), "finished": _now(), "data_fingerprint": data_fingerprint}
    rows = [{**facts, **failed_row(member, error)} for member in group.members]
    results.write_part(bench, group.group_id, rows, [])


class exclusive_lock:
    """The lock of a group. Another process that holds it (one whose node is being lost) is waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.guard = folder, FileLock(folder / ".group.lock")

    def __enter__(self) -> None:
        try:
            self.guard.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise AspcError(f"Another process is still training in {self.folder}; wait for it to end.") from None

    def __exit__(self, *error: object) -> None:
        self.guard.release()


def _reporter(folder: Path, on_progress: OnProgress | None) -> OnProgress:
    """Notes how far a group is, for whoever looks from another process or machine."""
    last = 0.0

    def report(step: int, steps: int) -> None:
        nonlocal last
        if on_progress is not None:
            on_progress(step, steps)
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            write_atomically(folder / PROGRESS, json.dumps({"step": step, "steps": steps}).encode())

    return report


Rows = list[dict[str, Any]]


def _trained(group: Group, folder: Path, quiet: bool, report: OnProgress) -> tuple[Rows, Rows, int | None]:
    """Rows of the runs and of their curves, and a signal that came during the last chunk of all."""
    from aspc.training.trainer import Interrupted

    paths = {member.run.dataset: member.file for member in group.members}
    data = {name: _attempt(partial(load_dataset, name, path)) for name, path in paths.items()}
    marks = {name: data_fingerprint(found) for name, found in data.items() if isinstance(found, Dataset)}
    rows: Rows = []
    curves: Rows = []
    programs: dict[Any, list[Member]] = {}
    late_signal: int | None = None
    for member in group.members:
        found = data[member.run.dataset]
        if isinstance(found, Dataset):
            programs.setdefault((found.observation_size, found.action_size), []).append(member)
        else:
            rows.append(failed_row(member, found))
    for members in programs.values():
        if late_signal is not None:
            raise Interrupted(f"Stopped between two parts of {folder.name}.", late_signal)
        path = folder / f"fleet-{short_hash([m.run.run_id for m in members])[:8]}"
        fleet = _attempt(partial(_train, members, data, path, quiet, report))
        if isinstance(fleet, str):
            rows += [failed_row(member, fleet) for member in members]
            continue
        late_signal = fleet.signal
        for member in members:
            row, points = rows_of(fleet, member, data[member.run.dataset], len(members))
            rows.append(row)
            curves += points
    return [{**row, "data_fingerprint": marks.get(row["dataset"])} for row in rows], curves, late_signal


def _attempt(what: Callable[[], Any]) -> Any:
    """The value, or a sentence that says what went wrong. An interruption, a full disk or another file in the place of
    a run's data is no failure of the run."""
    from aspc.training.trainer import Interrupted

    try:
        return what()
    except (Interrupted, ExternalFailure):
        raise
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:2000]
    return text if isinstance(error, AspcError) else f"{type(error).__name__}: {text}{_place(error)}"


def _place(error: Exception) -> str:
    """Where in the user's own code it came from, if anywhere."""
    plugin = plugins.loaded()
    folder = None if plugin is None else Path(plugin.path).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent == folder]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def load_dataset(name: str, file: str | None) -> Dataset:
    """Load a dataset by name, or from its file.

    A file with the name of a D4RL dataset has D4RL's view of transitions; the file of an OGBench single task is
    relabelled with that task's rewards.
    """
    from aspc import data

    if file is None:
        return data.load(name)
    if name in tasks.datasets() or ogbench.is_single_task(name):
        return data.load(name, path=Path(file))
    return data.load(file, name=name)


def data_fingerprint(data: Dataset) -> str:
    """A hash of what a dataset holds, whatever its name and whichever algorithm learns from it."""
    return fingerprint(*files.dataset_arrays(data).values(), data.action_low, data.action_high)


def _train(members: Sequence[Member], data: Mapping[str, Any], path: Path, quiet: bool, report: OnProgress) -> Fleet:
    from aspc.training.fleet import Member as FleetMember
    from aspc.training.fleet import traceable, train_fleet

    first = members[0]
    algorithm = first.algorithm()
    # A number that any of them sets is set by all: a run gives the same bits whatever it is trained together with,
    # as long as these are the same numbers.
    varying = sorted({name for m in members for name in m.settings if traceable(algorithm, name)})

    def own(member: Member) -> dict[str, Any]:
        values = flat_values(member.algorithm())
        return {name: values[name] for name in varying}

    return train_fleet(
        first.run.algo,
        algorithm,
        [FleetMember(m.run.run_id, data[m.run.dataset], m.run.seed, own(m)) for m in members],
        first.run.train_options(),
        path,
        bc=first.run.bc,
        quiet=quiet,
        on_progress=report,
    )


# ── its results, as rows ────────────────────────────────────────────────────────────────────────────────────────────


def identity(member: Member) -> dict[str, Any]:
    """What a run is, whatever came of it."""
    run, algorithm = member.run, member.algorithm()
    options = {name: value for name, value in dataclasses.asdict(run.train_options()).items() if name != "seeds"}
    config = {
        "algo": run.algo,
        "bc": run.bc,
        "hyperparameters": to_plain(algorithm),
        "dataset": run.dataset,
        "seed": run.seed,
        "options": options,
        "scale_of": run.scale_of,
    }
    return {
        "run_id": run.run_id,
        "suite": member.suite,
        "variant": member.variant,
        "algo": run.algo,
        "dataset": run.dataset,
        "seed": run.seed,
        "steps": run.steps,
        "settings": member.settings,
        "config": config,
        "config_hash": short_hash(config),
        "scale_name": getattr(algorithm, "scale_name", None),
        "matmul_precision": options["matmul_precision"],
    }


def failed_row(member: Member, error: str) -> dict[str, Any]:
    return {**identity(member), "status": "failed", "error": error}


def rows_of(fleet: Fleet, member: Member, data: Dataset, together: int) -> tuple[dict[str, Any], Rows]:
    """A run's row, and the points of its curves."""
    assert fleet.result is not None
    came_to = fleet.result["members"][member.run.run_id]
    initial = initial_scale(member.algorithm())
    row = {
        **identity(member),
        "status": came_to["status"],
        "error": came_to["error"],
        **{f"{name}_{which}": came_to[f"{which}_{name}"] for name in ("score", "return") for which in ("last", "best")},
        "success_last": came_to["success"],
        "episodes": came_to["episodes"],
        "scale_initial": initial,
        "scale_last": initial if came_to["final_scale"] is None else came_to["final_scale"],
        "behaviour_score": data.behaviour_score(),
        "seconds": came_to["seconds"],
        "steps_per_second": came_to["steps_per_second"],
        "runs_together": together,
        "device": fleet.config["device"],
        "versions": fleet.config["versions"],
        "folder": os.path.join("groups", *fleet.path.parts[-2:]),
    }
    points = curve_points(fleet.metrics(member.run.run_id), fleet.evaluations(member.run.run_id))
    return row, [{"run_id": member.run.run_id, **point} for point in points]


def initial_scale(algorithm: Any) -> float | None:
    """The scale that a run starts with; None where the algorithm has none."""
    if getattr(algorithm, "scale_mode", None) == "converged":
        return algorithm.scale_target
    return getattr(getattr(algorithm, "base", algorithm), "scale", None)


# Column of the results → the metrics that say it, the first that an algorithm has.
CURVE_METRICS = {
    "scale": ("scale",),
    "q": ("actor_q_mean", "q_mean", "q_min"),
    "bc_loss": ("bc_loss", "distillation_loss", "penalty"),
    "critic_loss": ("critic_loss",),
    "l1": ("l1",),
    "l2": ("l2",),
    "l3": ("l3",),
}


def curve_points(metrics: Mapping[str, Any], evaluations: Mapping[str, Any]) -> Rows:
    """A point for every evaluation, and enough others to draw the metrics."""
    points: dict[int, dict[str, Any]] = {}
    names = {"score": "score_mean", "return": "return_mean", "success_rate": "success_rate"}
    for i, step in enumerate(evaluations.get("step", ())):
        points[int(step)] = {column: float(evaluations[name][i]) for column, name in names.items()}
    steps = metrics.get("step", ())
    chosen = {column: name for column, known in CURVE_METRICS.items() for name in reversed(known) if name in metrics}
    every = -(-len(steps) // MOST_POINTS)
    for i, step in enumerate(steps):
        if int(step) in points or (len(steps) - 1 - i) % max(every, 1) == 0:
            values = {column: float(metrics[name][i]) for column, name in chosen.items()}
            points.setdefault(int(step), {}).update(values)
    return [{"step": step, **points[step]} for step in sorted(points)]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _machine_facts() -> dict[str, Any]:
    return {"machine": machine(), "git_revision": git_revision()}


@cache
def machine() -> str:
    """The processor and its cores; no name of a host."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{platform.system()} {platform.machine()}, {model}, {os.cpu_count()} cores"


@cache
def git_revision() -> str | None:
    """The revision of the code, where it runs from a checkout of its repository, or where ASPC_REVISION says it."""
    if given := os.environ.get("ASPC_REVISION"):
        return given
    here = Path(__file__).parents[3]
    if not (here / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, timeout=30, check=True
        ).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src").strip()
        return git("rev-parse", "HEAD").strip() + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
