"""Tries faults on every command and file format, and prints what became of them.

    .venv/bin/python tests/faults/run.py                       all of it (make test-faults)
    .venv/bin/python tests/faults/run.py --sample              two minutes of it
    .venv/bin/python tests/faults/run.py --only kills --seed 7

Exit code 1 if a fault led to a crash, a hang, a result that is silently another one, or too much
memory; each such trial is described.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import full_disk
import kills
from tqdm import tqdm
from trial import DEFECTS, Outcome, Trial
from world import make_world

CAMPAIGNS = {"kills": kills, "full disk": full_disk}
JOBS = 2


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
            random = Random(f"{args.seed} {name}")
            trials = list(CAMPAIGNS[name].trials(world, random, full=not args.sample))
            rows[name], bad = try_all(name, trials)
            defects += bad
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps({"seed": args.seed, "rows": rows}, indent=1))
    for trial, outcome, text in defects:
        print(f"\n{outcome.value}: {trial.name}\n{text[-2000:]}")
    return 1 if defects else 0


def try_all(name: str, trials: list[Trial]) -> tuple[dict[str, int], list]:
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
        (trial, outcome, text)
        for trial, (outcome, text) in zip(trials, found, strict=True)
        if outcome in DEFECTS
    ]
    return {"tried": len(trials), **{each.value: counts[each] for each in Outcome}}, bad


def table(rows: dict[str, dict[str, int]]) -> str:
    """In Markdown."""
    head = ["campaign", "tried", *(each.value for each in Outcome)]
    lines = [head, ["---"] * len(head)]
    lines += [[name, *(f"{row[column]:,}" for column in head[1:])] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
