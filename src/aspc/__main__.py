"""The `aspc` command: finds the subcommand and loads only what it needs, so that help is there at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

# name → (module, function, what it does)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("aspc.cli", "train", "Train a policy on a dataset; leaves a run folder behind."),
    "eval": ("aspc.cli", "evaluate", "Roll the policies of a run out again, in many episodes."),
    "data": ("aspc.data.commands", "main", "List, inspect, download, make, convert and collect datasets."),
    "bench": ("aspc.experiments.commands", "bench", "Run a table or figure of the paper, here or on a cluster."),
    "results": ("aspc.experiments.results_command", "main", "Merge folders of results, export them as CSV."),
    "report": ("aspc.report.commands", "main", "Make one page to read from results: tables, curves, claims."),
    "fqe": ("aspc.ope", "main", "Which policy is best? Fitted-Q evaluation, with no simulator."),
    "inspect": ("aspc.inspect", "main", "May I trust this policy? One page about a run."),
    "export": ("aspc.export", "main", "Write a policy as ONNX, StableHLO or plain NumPy."),
    "finetune": ("aspc.finetune", "main", "Go on from a run in its environment: offline to online."),
    "verify": ("aspc.cli", "verify", "Replay reference traces in float64: is this the authors' algorithm?"),
    "speed": ("aspc.training.speed_command", "main", "Measure steps per second here, and the share of the limit."),
}

USAGE = """usage: aspc COMMAND [OPTIONS]     (aspc COMMAND --help says more)

Offline reinforcement learning with no per-dataset tuning: a logged dataset in, a policy out.

commands:
{commands}

first steps:
  aspc train --steps 16000 --alpha 10           a policy for the embedded maze, in minutes
  aspc data info mylogs.csv                     what is in my data?
  aspc train mylogs.csv --steps 200000          a policy from my own logs, no simulator needed
  aspc train hopper-medium-v2 --seeds 0 1 2 3   a D4RL benchmark, four seeds at once
"""


def usage() -> str:
    return USAGE.format(commands="\n".join(f"  {name:8s} {what}" for name, (_, _, what) in COMMANDS.items()))


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, 2 for what the user can mend, or the command's own."""
    from aspc.errors import unknown_name

    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("--version", "-V"):
        from importlib.metadata import version

        print(f"aspc {version('aspc')}")
        return 0

    def command() -> int | None:
        if argv[0] not in COMMANDS:
            raise unknown_name("command", argv[0], COMMANDS)
        module, function, _ = COMMANDS[argv[0]]
        return getattr(import_module(module), function)(argv[1:])

    return exit_code(command)


@contextmanager
def no_interruption_lost() -> Iterator[None]:
    """Python prints and forgets what is raised in a callback of the garbage collector, and JAX has one: a Ctrl-C that
    comes there is given again, a moment later: in the hook itself it would be forgotten too, and on a busy machine it
    takes a while until that is left."""
    usual = sys.unraisablehook

    def hook(forgotten: sys.UnraisableHookArgs) -> None:
        if issubclass(forgotten.exc_type, KeyboardInterrupt):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            usual(forgotten)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def exit_code(work: Callable[[], int | None]) -> int:
    """Do some work. What the user can mend, or has interrupted, is one sentence on stderr and an exit code."""
    from aspc.errors import DISK_ERRORS, AspcError

    try:
        with no_interruption_lost():
            return work() or 0
    except AspcError as error:
        print(f"aspc: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except KeyboardInterrupt:
        print("aspc: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"aspc: {where}{error.strerror}; make room or choose another place, then do it again.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
