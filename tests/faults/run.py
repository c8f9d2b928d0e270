"""Tries faults on every command and file format, and prints what became of them.

    .venv/bin/python tests/faults/run.py                       all of it (make test-faults)
    .venv/bin/python tests/faults/run.py --sample              two minutes of it
    .venv/bin/python tests/faults/run.py --only kills --seed 7

Exit code 1 if a fault led to a crash, a hang, a result that is silently another one, or too much
memory; each such trial is described. A damaged file may be accepted: no reader notices a changed
pixel.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import flip_files
import full_disk
import fuzz_nets
import kills
from tqdm import tqdm
from trial import DEFECTS, Outcome, Trial
from world import World, make_world

JOBS = 2

Row = dict[str, int]
"""How often each outcome was seen."""


def run_trials(campaign) -> Callable[[World, int, bool], tuple[Row, list[str]]]:
    """A campaign whose trials are known beforehand."""

    def run(world: World, seed: int, full: bool) -> tuple[Row, list[str]]:
        name = campaign.__name__
        trials = list(campaign.trials(world, Random(f"{seed} {name}"), full))
        return try_all(name, trials)

    return run


def try_nets(world: World, seed: int, full: bool) -> tuple[Row, list[str]]:
    """Nets with extreme numbers."""
    results, failures = fuzz_nets.fuzz(seed, 2500 if full else 150)
    hangs = [one for one in failures if one.reason.startswith("takes more")]
    row = {
        "tried": results.total(),
        Outcome.CLEAN_ERROR.value: results["error"],
        Outcome.ACCEPTED.value: results.total() - results["error"] - results["fails"],
        Outcome.CRASH.value: len(failures) - len(hangs),
        Outcome.HANG.value: len(hangs),
    }
    return row, [
        f"fuzz_nets.py --seed {seed} --show {one.number}: {one.reason}" for one in failures
    ]


def try_files(world: World, seed: int, full: bool) -> tuple[Row, list[str]]:
    """Damaged files of every format."""
    trials = 265 if full else 5  # of 38 kinds: 10,000
    row: Counter = Counter()
    with tempfile.TemporaryDirectory() as good:
        flip_files.make_files(Path(good))
        for name in tqdm(flip_files.KINDS, desc="files", disable=not sys.stderr.isatty()):
            row += flip_files.try_kind(name, Path(good), trials, seed, None)
    tried = row.total()
    row["crash"] += row.pop("traceback", 0)
    defects = [f"{row[each.value]} files: {each.value}" for each in DEFECTS if row[each.value]]
    return {"tried": tried, **row}, defects


CAMPAIGNS = {
    "kills": run_trials(kills),
    "full disk": run_trials(full_disk),
    "nets": try_nets,
    "files": try_files,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, metavar="N")
    parser.add_argument("--sample", action="store_true", help="try a few faults of each kind only")
    parser.add_argument("--only", action="append", choices=CAMPAIGNS, help="a campaign")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON, too")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    rows, defects = {}, []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        world = make_world(Path(folder))
        for name in args.only or CAMPAIGNS:
            rows[name], bad = CAMPAIGNS[name](world, args.seed, not args.sample)
            defects += bad
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps({"seed": args.seed, "rows": rows}, indent=1))
    for defect in defects:
        print(f"\n{defect}")
    return 1 if defects else 0


def try_all(name: str, trials: list[Trial]) -> tuple[Row, list[str]]:
    """How often each outcome was seen, and the trials that show a defect."""
    with ThreadPoolExecutor(JOBS) as pool:
        found = list(
            tqdm(
                pool.map(lambda trial: trial.run(), trials),
                desc=name,
                total=len(trials),
                disable=not sys.stderr.isatty(),
            )
        )
    counts = Counter(outcome for outcome, _ in found)
    bad = [
        f"{outcome.value}: {trial.name}\n{text[-2000:]}"
        for trial, (outcome, text) in zip(trials, found, strict=True)
        if outcome in DEFECTS
    ]
    return {"tried": len(trials), **{each.value: counts[each] for each in Outcome}}, bad


def table(rows: dict[str, Row]) -> str:
    """In Markdown."""
    head = ["campaign", "tried", *(each.value for each in Outcome)]
    lines = [head, ["---"] * len(head)]
    lines += [
        [name, *(f"{row.get(column, 0):,}" for column in head[1:])] for name, row in rows.items()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
