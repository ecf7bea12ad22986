"""Compare training from a packed folder that is larger than the memory budget with training from memory.

    python benchmarks/streaming.py --rows 4000000 --budget-mb 128

The script packs synthetic data, trains alternately from memory (all rows) and from windows of rows, and then only from
windows. It prints both rates and their ratio, the peak of host memory relative to its value before the first window,
and the variance of minibatch means relative to uniform draws. The exit code is 1 if streaming is more than 20 % slower,
or if memory exceeds the budget by more than 25 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax

OBSERVATION, ACTION = 17, 6


def make_log(folder: Path, rows: int) -> None:
    """Write a synthetic log as an HDF5 file and pack it, one slab at a time."""
    import h5py

    from aspc.data import packing

    rng, slab = np.random.default_rng(0), 250_000
    with h5py.File(folder / "log.hdf5", "w") as file:
        shapes = {"observations": (rows, OBSERVATION), "actions": (rows, ACTION), "rewards": (rows,)}
        stored = {key: file.create_dataset(key, shape, dtype="f4") for key, shape in shapes.items()}
        for start in range(0, rows, slab):
            stop = min(start + slab, rows)
            for key, dataset in stored.items():
                values = rng.standard_normal((stop - start, *dataset.shape[1:]), dtype=np.float32)
                dataset[start:stop] = np.tanh(values) if key == "actions" else values
            stored["observations"][start:stop, 0] = np.linspace(start / rows, stop / rows, stop - start)
        file["terminals"] = np.zeros(rows, dtype=bool)
        file["timeouts"] = np.arange(rows) % 1000 == 999
    began = time.perf_counter()
    packed = packing.pack(folder / "log.hdf5", folder / "packed", action_low=-1, action_high=1)
    seconds = time.perf_counter() - began
    print(json.dumps({"rows": len(packed), "gb": len(packed) * packed.row_bytes / 1e9, "pack_seconds": seconds}))


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class PeakMemory:
    """A context manager that records the peak of this process's resident memory by sampling it in a thread."""

    def __enter__(self) -> PeakMemory:
        self.before = self.peak = resident_bytes()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.peak = max(self.peak, resident_bytes())

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Training:
    """A training run that can train each chunk on a different table."""

    def __init__(self, packed: Any, algo: str, chunk: int) -> None:
        import jax.numpy as jnp

        from aspc import algorithms
        from aspc.algorithms.interface import Spec
        from aspc.training.compiled_loop import Loop, RowRange, on_accelerator, start_runs
        from aspc.training.normalizer import ObservationNormalizer
        from aspc.training.packed_table import Layout, pack

        algorithm = algorithms.default(algo)
        spec = Spec(packed.observation_size, packed.action_size)
        layout = Layout(spec.obs_dim, spec.act_dim)
        std = (packed.observation_std + 1e-3).astype(np.float32)
        normalizer = ObservationNormalizer(packed.observation_mean.astype(np.float32), std)
        self.prepare = lambda transitions: pack(transitions, layout, normalizer, 0.99)
        self.width = layout.width
        self._loop = Loop(algorithm, spec, layout, vectorize=on_accelerator())
        self._blocks = max(1, chunk // self._loop.block_steps)
        self.steps = self._blocks * self._loop.block_steps
        source = RowRange(jnp.zeros(1, jnp.int32), jnp.full(1, 0, jnp.int32))
        runs = start_runs(algorithm, spec, jnp.arange(1), source)
        self._state, self._runs = runs.state, runs._replace(state=None)
        self._done = 0

    def run_chunk(self, table: jax.Array | np.ndarray) -> None:
        import jax
        import jax.numpy as jnp

        on_device = jnp.asarray(table)
        runs = self._runs._replace(source=self._runs.source._replace(size=jnp.full(1, len(table), jnp.int32)))
        first = jnp.asarray(self._done * self._blocks)
        self._state, _ = jax.block_until_ready(
            self._loop.run_blocks(self._state, runs, on_device, first, blocks=self._blocks)
        )
        self._done += 1


def measure_rates(folder: Path, budget: int, chunk: int, chunks: int, algo: str) -> None:
    """Print steps per second for one table in memory and for windows, timed alternately on the same machine."""
    import jax.numpy as jnp

    from aspc.data.streaming import StreamingDataset

    packed = StreamingDataset.open(folder / "packed")
    training = Training(packed, algo, chunk)
    stored = np.memmap(folder / "packed" / "rows.f32", dtype="<f4", mode="r").reshape(len(packed), packed.layout.width)
    everything = jnp.asarray(training.prepare(packed.split(stored)))
    seconds: dict[str, list[float]] = {"memory": [], "stream": []}
    with packed.windows(packed.window_rows(budget), prepare=training.prepare) as windows:
        for _ in range(chunks + 1):
            for kind, times in seconds.items():
                began = time.perf_counter()
                training.run_chunk(everything if kind == "memory" else next(windows))
                times.append(time.perf_counter() - began)
    rates = {kind: training.steps / float(np.median(times[1:])) for kind, times in seconds.items()}
    ratio = variance_ratio(packed, packed.window_rows(budget))
    print(json.dumps({**rates, "window_rows": windows.rows, "minibatch_variance_ratio": ratio}))


def measure_memory(folder: Path, budget: int, chunk: int, chunks: int, algo: str) -> None:
    """Print the peak of host memory while training from windows, relative to its value before the first window."""
    from aspc.data.streaming import BLOCK_ROWS, StreamingDataset

    packed = StreamingDataset.open(folder / "packed")
    training = Training(packed, algo, chunk)
    rows = packed.window_rows(budget) // BLOCK_ROWS * BLOCK_ROWS
    training.run_chunk(np.zeros((rows, training.width), np.float32))  # compile, and allocate the step's own buffers
    with PeakMemory() as memory, packed.windows(rows, prepare=training.prepare) as windows:
        for _ in range(chunks):
            training.run_chunk(next(windows))
    print(json.dumps({"peak_mb": (memory.peak - memory.before) / 1e6}))


def variance_ratio(packed: Any, rows: int, windows: int = 40) -> float:
    """Return the variance of a minibatch's mean position in the file, relative to uniform draws (1 is ideal)."""
    rng, means = np.random.default_rng(0), []
    with packed.windows(rows, seed=1, prepare=lambda t: t.observations[:, :1]) as drawn:
        for _ in range(windows):
            table = next(drawn)
            means += [table[rng.integers(len(table), size=256), 0].mean() for _ in range(50)]
    return float(np.var(means) / (1 / 12 / 256))


def run_child(*arguments: str) -> dict[str, Any]:
    """Run a part of this script in a separate process and return the JSON object in its last line of output."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="number of rows of synthetic data (200 bytes each)")
    parser.add_argument("--budget-mb", type=int, default=128, help="host memory for windows, in MB")
    parser.add_argument("--chunk", type=int, default=500, help="number of training steps per window")
    parser.add_argument("--chunks", type=int, default=8, help="number of timed windows")
    parser.add_argument("--algo", default="aspc")
    parser.add_argument("--folder", type=Path, help="folder for the data (default: a temporary folder)")
    parser.add_argument("--part", choices=["make", "rates", "memory"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "make":
        make_log(args.folder, args.rows)
        return 0
    if args.part is not None:
        measure = measure_rates if args.part == "rates" else measure_memory
        measure(args.folder, args.budget_mb * 1_000_000, args.chunk, args.chunks, args.algo)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(args.folder or temporary)
        Path(folder).mkdir(parents=True, exist_ok=True)
        common = ["--folder", folder, "--rows", str(args.rows), "--budget-mb", str(args.budget_mb)]
        common += ["--chunk", str(args.chunk), "--chunks", str(args.chunks), "--algo", args.algo]
        made = run_child(*common, "--part", "make")
        print(f"packed data       {made['rows']:,} rows, {made['gb']:.2f} GB, packed in {made['pack_seconds']:.1f} s")
        rates, memory = run_child(*common, "--part", "rates"), run_child(*common, "--part", "memory")
    share = rates["stream"] / rates["memory"]
    print(f"from memory       {rates['memory']:8.1f} steps/s")
    print(f"from windows      {rates['stream']:8.1f} steps/s, {100 * share:.1f} % of the rate from memory")
    print(f"windows           {rates['window_rows']:8,} rows, peak {memory['peak_mb']:.0f} MB of {args.budget_mb} MB")
    print(f"minibatch spread  {rates['minibatch_variance_ratio']:8.3f} of uniform draws' variance")
    return int(share < 0.8 or memory["peak_mb"] > 1.25 * args.budget_mb)


if __name__ == "__main__":
    sys.exit(main())
