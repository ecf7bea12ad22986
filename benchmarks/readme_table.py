"""Write README's speed table from the files in benchmarks/results: python benchmarks/readme_table.py"""

from __future__ import annotations

import json
from pathlib import Path

from aspc.io import write_atomically

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- speed: written by benchmarks/readme_table.py -->\n\n", "\n<!-- end of speed -->"


def format_row(device: str, runs: int, steps_per_second: float) -> str:
    minutes = runs * 1e6 / steps_per_second / 60
    time = f"{minutes:.1f} min" if minutes < 60 else f"{minutes / 60:,.1f} h"
    return f"| {device} | {runs} | {steps_per_second:,.0f} | {time} |\n"


def make_table(results: Path = RESULTS) -> str:
    """Return a Markdown table of the speed of `aspc` at HalfCheetah's dimensions, on every measured device."""
    cores = json.loads((results / "costs_2_cores.json").read_text())["speeds"]  # measured on a machine with two cores
    rows = [format_row("two CPU cores", r["seeds"], r["steps_per_second"]) for r in cores if r["algo"] == "aspc"]
    for path in sorted(results.glob("*.json")):
        rates = json.loads(path.read_text()).get("rates", [])  # written by accelerator.py
        by_runs = sorted(rates, key=lambda r: r["seeds"])
        rows += [format_row(r["device"].removeprefix("gpu: "), r["seeds"], r["steps_per_second"]) for r in by_runs]
    if len(rows) == 1:
        rows.append("| GPU | | not measured | |\n")
    head = "| device | parallel runs | steps/s, all runs | time for a million steps |\n|---|---|---|---|\n"
    return head + "".join(rows)


def replace_table(text: str, new: str) -> str:
    """Return README with the new table between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{new}{END}{after}"


if __name__ == "__main__":
    readme = REPOSITORY / "README.md"
    write_atomically(readme, replace_table(readme.read_text(), make_table()).encode())
