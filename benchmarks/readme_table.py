"""README's table of speed, from the files in benchmarks/results: python benchmarks/readme_table.py"""

from __future__ import annotations

import json
from pathlib import Path

from aspc.io import write_atomically

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- speed: written by benchmarks/readme_table.py -->\n\n", "\n<!-- end of speed -->"


def row(device: str, runs: int, steps_per_second: float) -> str:
    minutes = runs * 1e6 / steps_per_second / 60
    time = f"{minutes:.1f} min" if minutes < 60 else f"{minutes / 60:,.1f} h"
    return f"| {device} | {runs} | {steps_per_second:,.0f} | {time} |\n"


def table(results: Path = RESULTS) -> str:
    """Markdown: what `aspc` does with the sizes of HalfCheetah, on every device that was measured."""
    cores = json.loads((results / "costs_2_cores.json").read_text())["speeds"]  # of a machine with no more than two
    rows = [row("two CPU cores", r["seeds"], r["steps_per_second"]) for r in cores if r["algo"] == "aspc"]
    for path in sorted(results.glob("*.json")):
        rates = json.loads(path.read_text()).get("rates", [])  # what accelerator.py writes
        by_runs = sorted(rates, key=lambda r: r["seeds"])
        rows += [row(r["device"].removeprefix("gpu: "), r["seeds"], r["steps_per_second"]) for r in by_runs]
    if len(rows) == 1:
        rows.append("| a GPU | | not measured yet | |\n")
    head = "| `aspc` on | runs together | steps/s, all runs | a million steps of each |\n|---|---|---|---|\n"
    return head + "".join(rows)


def replaced(text: str, new: str) -> str:
    """README with another table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{new}{END}{after}"


if __name__ == "__main__":
    readme = REPOSITORY / "README.md"
    write_atomically(readme, replaced(readme.read_text(), table()).encode())
