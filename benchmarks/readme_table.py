"""Write the speed table in README.md from the files in benchmarks/results: python benchmarks/readme_table.py"""

from __future__ import annotations

import json
from pathlib import Path

from aspc.io import write_atomically

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
BEGIN, END = "<!-- speed: written by benchmarks/readme_table.py -->\n\n", "\n<!-- end of speed -->"


def format_time(runs: int, steps_per_second: float) -> str:
    """Return the time that parallel runs need for a million steps each, as text."""
    minutes = runs * 1e6 / steps_per_second / 60
    return f"{minutes:.1f} min" if minutes < 60 else f"{minutes / 60:,.1f} h"


def make_table(results: Path = RESULTS) -> str:
    """Return a Markdown table of ASPC's speed with HalfCheetah's dimensions, by device and number of runs."""
    cores = json.loads((results / "costs_2_cores.json").read_text())["speeds"]  # measured on a machine with two cores
    measured = [("two CPU cores", r["seeds"], r["steps_per_second"]) for r in cores if r["algo"] == "aspc"]
    for path in sorted(results.glob("*.json")):
        rates = json.loads(path.read_text()).get("rates", [])  # written by accelerator.py
        by_runs = sorted(rates, key=lambda r: r["seeds"])
        measured += [(r["device"].removeprefix("gpu: "), r["seeds"], r["steps_per_second"]) for r in by_runs]
    columns = [
        (f"{device}, {runs} run{'s' if runs > 1 else ''}", f"{rate:,.0f}", format_time(runs, rate))
        for device, runs, rate in measured
    ]
    if len(columns) == 1:
        columns.append(("GPU", "not measured", "not measured"))
    head, speeds, times = zip(("ASPC", "steps/s, all runs", "time for a million steps"), *columns, strict=True)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), speeds, times))


def replace_table(text: str, new: str) -> str:
    """Return the text of README.md with the new table between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{new}{END}{after}"


if __name__ == "__main__":
    readme = REPOSITORY / "README.md"
    write_atomically(readme, replace_table(readme.read_text(), make_table()).encode())
