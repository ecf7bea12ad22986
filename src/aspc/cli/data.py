"""`aspc data list | info | download | make | convert | collect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from aspc import data, tasks
from aspc.cli.parsing import read_options
from aspc.data import cache, files
from aspc.data.dataset import Dataset
from aspc.data.sources import d4rl as d4rl_files
from aspc.data.sources import maze2d, minari, ogbench, pointmaze
from aspc.errors import AspcError, unknown_name

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]


@dataclass(frozen=True)
class Source:
    """How to read your own data."""

    map: tuple[str, ...] = ()
    """Which stored name or columns hold which array, as in observations=obs actions=u_*,v."""
    env: str | None = None
    """Environment of the data, "none" for none; by default the dataset's own."""
    action_low: tuple[float, ...] = ()
    """Lowest action: one number, or one a dimension."""
    action_high: tuple[float, ...] = ()
    """Highest action: one number, or one a dimension."""
    max_episode_steps: int | None = None
    """Step limit that ends episodes where the data has no timeouts."""
    strict: bool = False
    """Make actions beyond the bounds an error instead of clipping them."""

    def load(self, name: str) -> Dataset:
        """Load a dataset with those of these options that were given."""
        return data.load(name, **self.options())

    def options(self) -> dict[str, Any]:
        stated = {
            "key_map": self.key_map() or None,
            "env": self.env,
            "action_low": _one_or_many(self.action_low),
            "action_high": _one_or_many(self.action_high),
            "max_episode_steps": self.max_episode_steps,
            "strict": self.strict,
        }
        return {key: value for key, value in stated.items() if value is not None and value is not False}

    @classmethod
    def stated(cls, options: Mapping[str, Any]) -> Source:
        """The inverse of `options`."""
        return cls(
            map=tuple(f"{key}={_with_commas(names)}" for key, names in options.get("key_map", {}).items()),
            env=options.get("env"),
            action_low=_many(options.get("action_low", [])),
            action_high=_many(options.get("action_high", [])),
            max_episode_steps=options.get("max_episode_steps"),
            strict=options.get("strict", False),
        )

    def key_map(self) -> dict[str, str]:
        pairs = [entry.partition("=") for entry in self.map]
        wrong = [
            entry for entry, (key, sign, value) in zip(self.map, pairs, strict=True) if not (key and sign and value)
        ]
        if wrong:
            raise AspcError(f"--map takes KEY=NAME, as in observations=obs, not {wrong[0]!r}.")
        twice = [key for key, count in Counter(key for key, *_ in pairs).items() if count > 1]
        if twice:
            raise AspcError(f"--map names {twice[0]!r} twice; give it once, with commas: {twice[0]}=NAME,NAME.")
        return {key: value for key, _, value in pairs}


def _one_or_many(values: tuple[float, ...]) -> float | list[float] | None:
    if not values:
        return None
    return values[0] if len(values) == 1 else list(values)


def _with_commas(names: Any) -> str:
    return ",".join(map(str, names)) if isinstance(names, list | tuple) else str(names)


def _many(value: float | list[float]) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


@dataclass(frozen=True)
class List:
    """List the datasets that have a name, and mark those that are on this machine."""

    filter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[FILTER]")] = ""
    """Show only names that contain this."""

    def run(self) -> None:
        generated = cache.root() / "generated"
        groups = {
            "Generated here, no download": [
                (name, any(generated.glob(f"{name}-[0-9]*.hdf5"))) for name in maze2d.NAMES
            ],
            "D4RL": [(name, d4rl_files.file_path(name).exists()) for name in tasks.datasets()],
            "OGBench, single task": [(name, ogbench.file_path(name).exists()) for name in ogbench.known_names()],
        }
        print(f"Cache folder: {cache.root()}  (* is there already)")
        for title, names in groups.items():
            shown = [(name, there) for name, there in names if self.filter in name]
            if shown:
                print(f"\n{title} ({len(shown)})")
            for name, there in shown:
                print(f"  {'*' if there else ' '} {name}")
        print("\nMinari ids work too (D4RL/pen/human-v2), and so do paths of files and folders.")


@dataclass(frozen=True)
class Info:
    """Show what is in a dataset: sizes, returns, episode lengths, action bounds, warnings."""

    dataset: Name
    """A name (`aspc data list` shows them) or a path."""
    plot: bool = False
    """Also write a page of pictures."""
    page: Path | None = None
    """Where to write that page; by default NAME.html in this folder."""
    source: tyro.conf.OmitArgPrefixes[Source] = Source()

    def run(self) -> None:
        from aspc.data import streaming
        from aspc.data.diagnostics import summarise, summarise_packed
        from aspc.policy import make_room

        if self.page is not None:
            make_room(self.page, ".html")
        if streaming.is_packed(self.dataset):
            if self.plot or self.page is not None or self.source.options():
                raise AspcError(
                    f"{self.dataset} is packed: pictures and other options are for what it was packed from."
                )
            print(summarise_packed(streaming.StreamingDataset.open(self.dataset)).text())
            return
        loaded = self.source.load(self.dataset)
        print(summarise(loaded).text())
        if self.plot or self.page is not None:
            from aspc.data.dataset_page import write_page

            path = Path(f"{cache.sanitize_file_name(loaded.name)}.html") if self.page is None else self.page
            write_page(loaded, path)
            print(f"pictures: {path}")


@dataclass(frozen=True)
class Download:
    """Download datasets into the cache; a cut download goes on where it stopped."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET [DATASET ...]")]
    """D4RL, OGBench or Minari names."""

    def run(self) -> None:
        if not self.names:
            raise AspcError("Say which datasets to download; `aspc data list` shows their names.")
        for name in self.names:
            for path in _download(name):
                print(path)


def _download(name: str) -> list[Any]:
    if name in tasks.datasets():
        return [d4rl_files.download(name)]
    if ogbench.is_single_task(name):
        return [ogbench.download(name, split) for split in ("train", "val")]
    if name.startswith(minari.PREFIX) or "/" in name:
        return [minari.download(name)]
    raise unknown_name("dataset to download", name, [*tasks.datasets(), *ogbench.known_names()])


@dataclass(frozen=True)
class Make:
    """Generate maze2d-{umaze,medium,large}[-clean] or pointmaze-{medium,large,giant} with a scripted controller."""

    name: Name
    """Which one to make."""
    out: Path | None = None
    """File to write: .hdf5 (D4RL's layout) for maze2d, .npz (OGBench's) for pointmaze; default: NAME in this folder."""
    steps: int | None = None
    """Total steps; by default the benchmark's size (1 to 4 million)."""
    noise: float | None = None
    """Standard deviation of the action noise; by default 0.5, or 0 for -clean."""
    seed: int = 0
    """Random seed."""

    def run(self) -> None:
        if self.seed < 0:
            raise AspcError(f"--seed must be 0 or more, not {self.seed}.")
        if self.name in maze2d.NAMES:
            maze, usual = maze2d.parse_name(self.name)
            steps = maze2d.DEFAULT_STEPS[maze] if self.steps is None else self.steps
            path, facts = self._path(".hdf5", steps), {"env": self.name}
            with cache.progress(f"Making {self.name}", steps) as advance:
                arrays = maze2d.generate(maze, steps, self.seed, self._noise(usual), advance)
            files.write_hdf5(path, arrays, facts)
        elif self.name in pointmaze.NAMES:
            steps = pointmaze.EPISODES * pointmaze.EPISODE_STEPS if self.steps is None else self.steps
            path = self._path(".npz", steps)
            length = min(steps, pointmaze.EPISODE_STEPS)
            with cache.progress(f"Making {self.name}", steps) as advance:
                noise = self._noise(pointmaze.NOISE)
                arrays = pointmaze.generate(self.name, steps // length, length, self.seed, noise, advance)
            files.write_npz(path, arrays)
        else:
            raise unknown_name("dataset to make", self.name, [*maze2d.NAMES, *pointmaze.NAMES])
        print(f"{path}: {len(arrays['observations']):,} rows")

    def _noise(self, usual: float) -> float:
        if self.noise is not None and self.noise < 0:
            raise AspcError(f"--noise is a standard deviation and cannot be {self.noise}.")
        return usual if self.noise is None else self.noise

    def _path(self, suffix: str, steps: int) -> Path:
        if steps < 2:
            raise AspcError(f"--steps must be at least 2, not {steps}.")
        path = Path(f"{self.name}{suffix}") if self.out is None else self.out
        if path.suffix != suffix:
            raise AspcError(f"{self.name} is written as a {suffix} file, so --out must end in {suffix}.")
        return _not_there_yet(path)


def _not_there_yet(path: Path) -> Path:
    if path.exists():
        raise AspcError(f"{path} is there already; choose another name or remove it.")
    return path


@dataclass(frozen=True)
class Convert:
    """Write a dataset in another layout; the destination's form says which.

    FILE.hdf5 is D4RL's layout, FILE.npz the same arrays for NumPy, minari:ID a dataset in Minari's store, and a name
    without a suffix a packed folder, which is streamed in training and may be larger than memory.
    """

    dataset: Name
    """A name or a path."""
    destination: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DESTINATION")]
    """FILE.hdf5, FILE.npz, minari:ID, or a folder to pack into."""
    source: tyro.conf.OmitArgPrefixes[Source] = Source()

    def run(self) -> None:
        target = Path(self.destination)
        if self.destination.startswith(minari.PREFIX):
            loaded = self.source.load(self.dataset)
            notes = [*loaded.notes, *minari.write(loaded, minari.identifier(self.destination))]
        elif target.suffix in (*files.HDF5_SUFFIXES, ".npz"):
            _not_there_yet(target)
            loaded = self.source.load(self.dataset)
            notes = list(loaded.notes)
            write = files.write_npz if target.suffix == ".npz" else files.write_hdf5
            write(target, files.dataset_arrays(loaded), files.dataset_facts(loaded))
        elif target.suffix:
            raise AspcError(f"Datasets are not written as {target.suffix}; use .hdf5, .npz, minari:ID or a folder.")
        else:
            notes = self._pack(target)
        print(f"{self.dataset} → {self.destination}")
        for note in notes:
            print(f"warning: {note}")

    def _pack(self, target: Path) -> list[str]:
        """Pack; gives back what was noted."""
        from aspc.data import streaming

        if self.dataset.endswith(files.HDF5_SUFFIXES):
            streaming.pack(self.dataset, target, **self.source.options())
        else:
            streaming.pack(self.source.load(self.dataset), target)
        return list(streaming.StreamingDataset.open(target).notes)


@dataclass(frozen=True)
class Collect:
    """Roll a policy out in an environment and keep what happened as a dataset in D4RL's layout."""

    env: str
    """Environment: a dataset's name or a Gymnasium id."""
    policy: str
    """A run or policy folder of this library, an ONNX file, or "random"."""
    out: Path
    """File to write, ending in .hdf5."""
    steps: int = 100_000
    """Steps to take."""
    noise: float = 0.0
    """Standard deviation of noise on actions, in units of half their range."""
    seed: int = 0
    """Random seed."""

    def run(self) -> None:
        from aspc.data.collect import collect
        from aspc.data.diagnostics import summarise

        if self.out.suffix not in files.HDF5_SUFFIXES:
            raise AspcError("--out must end in .hdf5.")
        _not_there_yet(self.out)
        collected = collect(self.env, self.policy, self.steps, noise=self.noise, seed=self.seed)
        files.write_hdf5(self.out, files.dataset_arrays(collected), files.dataset_facts(collected))
        print(summarise(collected).text())
        print(f"written: {self.out}")


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Download, tyro.conf.subcommand("download")]
    | Annotated[Make, tyro.conf.subcommand("make")]
    | Annotated[Convert, tyro.conf.subcommand("convert")]
    | Annotated[Collect, tyro.conf.subcommand("collect")]
)


def main(argv: list[str]) -> int:
    """Run `aspc data ...`; what the user can mend is raised as `AspcError`."""
    command: Any = read_options(
        Command,
        argv,
        "aspc data",
        description="Datasets: list, look at, download, make, convert, collect.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    command.run()
    return 0
