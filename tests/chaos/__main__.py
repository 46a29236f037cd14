"""`python -m chaos --minutes 30 --seed 7`: one run, its counts and its verdict."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults go on")
    parser.add_argument("--seed", type=int, help="the schedule of an earlier run")
    parser.add_argument("--log", type=Path, help="where to write what was done when, to whom")
    parser.add_argument("--folder", type=Path, help="where the fleet keeps its files")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed
    log = options.log or Path(".cache", "chaos", f"{seed}.log")
    sys.stdout.write(f"seed {seed}, {options.minutes:g} minutes; the log is {log}\n")
    sys.stdout.flush()
    outcome = run(seed, options.minutes, log.resolve(), options.folder)
    sys.stdout.write(outcome.told() + "\n")
    return 0 if outcome.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
