"""The command `aspc data` with its subcommands list, info, download, make, convert and collect."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from aspc import minari_store, tasks
from aspc.cli.data_options import DataOptions
from aspc.cli.parsing import HELP_FLAGS, Flag, Unset, join, parse_options
from aspc.data import cache, writers
from aspc.data.readers import formats
from aspc.data.sources import d4rl as d4rl_files
from aspc.data.sources import maze2d, minari, ogbench, pointmaze
from aspc.errors import AspcError, unknown_name
from aspc.io import prepare_output_file
from aspc.ui import progress_bar

USAGE = "List, inspect, download, generate, convert and collect datasets."
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]

COMMON_OPTIONS = "plot page map reward kpi one-hot missing resample env max-episode-steps"  # shown by --help


@dataclass(frozen=True)
class List:
    """List the known dataset names and mark the datasets that are stored on this machine."""

    filter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[FILTER]")] = ""
    """Show only names that contain this text."""

    def run(self) -> None:
        generated = cache.root() / "generated"
        groups = {
            "Generated locally (no download)": [
                (name, any(generated.glob(f"{name}-[0-9]*.hdf5"))) for name in maze2d.NAMES
            ],
            "D4RL": [(name, d4rl_files.file_path(name).exists()) for name in tasks.d4rl_datasets()],
            "OGBench, single task": [(name, ogbench.file_path(name).exists()) for name in tasks.ogbench_names()],
        }
        print(f"Cache folder: {cache.root()}  (* = stored on this machine)")
        for title, names in groups.items():
            shown = [(name, is_local) for name, is_local in names if self.filter in name]
            if shown:
                print(f"\n{title} ({len(shown)})")
            for name, is_local in shown:
                print(f"  {'*' if is_local else ' '} {name}")
        print("\nMinari ids (D4RL/pen/human-v2) and paths of files and folders work too.")


@dataclass(frozen=True)
class Info:
    """Summarize a dataset: sizes, returns, episode lengths, action bounds and warnings."""

    dataset: Name
    """Dataset name (see `aspc data list`) or path."""
    plot: Flag = False
    """Also write an HTML page with figures."""
    page: Unset[Path] = None
    """Output file for the page; implies --plot. Default: NAME.html in the current folder."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)

    def run(self) -> None:
        from aspc.data import streaming
        from aspc.data.diagnostics import summarize, summarize_packed

        if self.page is not None:
            prepare_output_file(self.page, ".html")
        if streaming.is_packed(self.dataset):
            if self.plot or self.page is not None or self.source.options():
                raise AspcError(
                    f"{self.dataset} is a packed folder. To draw figures or use other options, pass the original data."
                )
            print(summarize_packed(streaming.StreamingDataset.open(self.dataset)).text())
            return
        loaded = self.source.load(self.dataset)
        print(summarize(loaded).text())
        if self.plot or self.page is not None:
            from aspc.data.dataset_page import write_page

            path = Path(f"{cache.sanitize_file_name(loaded.name)}.html") if self.page is None else self.page
            write_page(loaded, path)
            print(f"page: {path}")


@dataclass(frozen=True)
class Download:
    """Download datasets into the cache. An interrupted download continues where it stopped."""

    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET [DATASET ...]", help_behavior_hint="")
    ]
    """Names of D4RL, OGBench or Minari datasets."""

    def run(self) -> None:
        if not self.names:
            raise AspcError("Name at least one dataset to download. See `aspc data list`.")
        for name in self.names:
            for path in _download(name):
                print(path)


def _download(name: str) -> list[Any]:
    if name in tasks.d4rl_datasets():
        return [d4rl_files.download(name)]
    if tasks.is_ogbench_task(name):
        return [ogbench.download(name, split) for split in ("train", "val")]
    if name.startswith(minari_store.PREFIX) or "/" in name:
        return [minari.download(name)]
    raise unknown_name("dataset to download", name, [*tasks.d4rl_datasets(), *tasks.ogbench_names()])


@dataclass(frozen=True)
class Make:
    """Generate maze2d-{umaze,medium,large}[-clean] or pointmaze-{medium,large,giant} with a scripted controller."""

    name: Name
    """Name of the dataset to generate."""
    out: Unset[Path] = None
    """Output file: .hdf5 (D4RL's layout) for maze2d, .npz (OGBench's layout) for pointmaze. Default: NAME with this
    suffix, in the current folder."""
    steps: Unset[int] = None
    """Total steps. Default: the benchmark's size (1 to 4 million)."""
    noise: Unset[float] = None
    """Standard deviation of the action noise. Default: 0.5, or 0 for -clean."""
    seed: int = 0
    """Random seed."""

    def run(self) -> None:
        if self.seed < 0:
            raise AspcError(f"--seed must be at least 0, not {self.seed}.")
        if self.name in maze2d.NAMES:
            maze, usual = maze2d.parse_name(self.name)
            steps = maze2d.DEFAULT_STEPS[maze] if self.steps is None else self.steps
            path, facts = self._path(".hdf5", steps), {"env": self.name}
            with progress_bar(f"Generating {self.name}", steps) as advance:
                arrays = maze2d.generate(maze, steps, self.seed, self._noise(usual), advance)
            writers.write_hdf5(path, arrays, facts)
        elif self.name in pointmaze.NAMES:
            steps = pointmaze.EPISODES * pointmaze.EPISODE_STEPS if self.steps is None else self.steps
            path = self._path(".npz", steps)
            length = min(steps, pointmaze.EPISODE_STEPS)
            with progress_bar(f"Generating {self.name}", steps) as advance:
                noise = self._noise(pointmaze.NOISE)
                arrays = pointmaze.generate(self.name, steps // length, length, self.seed, noise, advance)
            writers.write_npz(path, arrays)
        else:
            raise unknown_name("dataset to generate", self.name, [*maze2d.NAMES, *pointmaze.NAMES])
        print(f"{path}: {len(arrays['observations']):,} rows")

    def _noise(self, usual: float) -> float:
        if self.noise is not None and self.noise < 0:
            raise AspcError(f"--noise must be at least 0, not {self.noise}.")
        return usual if self.noise is None else self.noise

    def _path(self, suffix: str, steps: int) -> Path:
        if steps < 2:
            raise AspcError(f"--steps must be at least 2, not {steps}.")
        path = Path(f"{self.name}{suffix}") if self.out is None else self.out
        if path.suffix != suffix:
            raise AspcError(
                f"{self.name} is written as a {suffix} file. Choose a name for --out that ends in {suffix}."
            )
        return check_absent(path)


def check_absent(path: Path) -> Path:
    """Check that a path does not exist yet, and return it.

    Raises:
        AspcError: The path exists.
    """
    if path.exists():
        raise AspcError(f"{path} already exists. Choose another name or remove it.")
    return path


@dataclass(frozen=True)
class Convert:
    """Convert a dataset; the destination's suffix selects the format.

    FILE.hdf5: D4RL's layout. FILE.npz: the same arrays for NumPy. minari:ID: a dataset in Minari's local storage. A
    name without a suffix: a packed folder, which is streamed during training and can be larger than memory.
    """

    dataset: Name
    """Dataset name or path."""
    destination: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DESTINATION")]
    """Output: FILE.hdf5, FILE.npz, minari:ID, or a folder to pack into."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)

    def run(self) -> None:
        target = Path(self.destination)
        if self.destination.startswith(minari_store.PREFIX):
            loaded = self.source.load(self.dataset)
            notes = [*loaded.notes, *minari.write(loaded, minari_store.parse_id(self.destination))]
        elif target.suffix in (*formats.HDF5_SUFFIXES, ".npz"):
            check_absent(target)
            loaded = self.source.load(self.dataset)
            notes = list(loaded.notes)
            write = writers.write_npz if target.suffix == ".npz" else writers.write_hdf5
            write(target, writers.dataset_arrays(loaded), writers.dataset_metadata(loaded))
        elif target.suffix:
            raise AspcError(f"Cannot write datasets as {target.suffix} files. Use .hdf5, .npz, minari:ID or a folder.")
        else:
            notes = self._pack(target)
        print(f"{self.dataset} → {self.destination}")
        for note in notes:
            print(f"warning: {note}")

    def _pack(self, target: Path) -> list[str]:
        """Pack the dataset into a folder and return its warnings."""
        from aspc.data import packing, streaming

        options = self.source.options()
        if self.dataset.endswith(formats.HDF5_SUFFIXES) and packing.can_pack_in_parts(options):
            packing.pack(self.dataset, target, **options)
        else:
            packing.pack(self.source.load(self.dataset), target)
        return list(streaming.StreamingDataset.open(target).notes)


@dataclass(frozen=True)
class Collect:
    """Collect a dataset in D4RL's layout by running a policy in an environment."""

    env: str
    """Environment: a dataset name or a Gymnasium id."""
    policy: str
    """Policy to run: a run or policy folder, an ONNX file, or "random"."""
    out: Path
    """Output file, ending in .hdf5."""
    steps: int = 100_000
    """Number of steps."""
    noise: float = 0.0
    """Standard deviation of the action noise, as a fraction of half the action range."""
    seed: int = 0
    """Random seed."""

    def run(self) -> None:
        from aspc.data.collect import collect
        from aspc.data.diagnostics import summarize

        if self.out.suffix not in formats.HDF5_SUFFIXES:
            raise AspcError(f"{self.out} is not an HDF5 file. Choose a name for --out that ends in .hdf5.")
        check_absent(self.out)
        collected = collect(self.env, self.policy, self.steps, noise=self.noise, seed=self.seed)
        writers.write_hdf5(self.out, writers.dataset_arrays(collected), writers.dataset_metadata(collected))
        print(summarize(collected).text())
        print(f"written: {self.out}")


COMMANDS: dict[str, type[List | Info | Download | Make | Convert | Collect]] = {
    "list": List,
    "info": Info,
    "download": Download,
    "make": Make,
    "convert": Convert,
    "collect": Collect,
}


def usage() -> str:
    """Return the text of `aspc data --help`."""
    summaries = {name: inspect.cleandoc(kind.__doc__ or "").splitlines()[0] for name, kind in COMMANDS.items()}
    lines = "\n".join(f"  {name:10s} {summary}" for name, summary in summaries.items())
    return f"usage: aspc data COMMAND [OPTIONS]     (see aspc data COMMAND --help)\n\n{USAGE}\n\ncommands:\n{lines}\n"


def main(argv: list[str]) -> int:
    """Run `aspc data`."""
    if not argv:
        raise AspcError(f"aspc data needs a subcommand: {join(tuple(COMMANDS), 'or')}.")
    if argv[0] in HELP_FLAGS:
        print(usage())
        return 0
    if argv[0] not in COMMANDS:
        raise unknown_name("data command", argv[0], COMMANDS)
    parse_options(COMMANDS[argv[0]], argv[1:], f"aspc data {argv[0]}", common=COMMON_OPTIONS).run()
    return 0
