"""Tries faults on every command and file format, and prints what became of them.

    .venv/bin/python tests/faults/run.py                       all of it (make test-faults)
    .venv/bin/python tests/faults/run.py --sample              two minutes of it
    .venv/bin/python tests/faults/run.py --only kills --seed 7

Exit code 1 if a fault led to a result that is wrong in silence, a crash, a hang, or too much
memory; each such trial is described. A damaged file may be accepted: no reader notices a changed
pixel.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import bad_prototxts
import bombs
import cut_files
import flip_files
import full_disk
import fuzz_nets
import hostile
import kills
from tqdm import tqdm
from trial import SECONDS, Found, Outcome
from world import World, make_world

JOBS = 2
NETS, SAMPLE_NETS = 2500, 150
NETS_AT_ONCE = 125


def nets(world: World, seed: str, full: bool) -> Iterator[Callable[[], Found]]:
    """Nets with extreme numbers."""
    count = NETS if full else SAMPLE_NETS
    for first in range(0, count, NETS_AT_ONCE):
        yield partial(try_nets, int(seed), first, min(first + NETS_AT_ONCE, count))


def try_nets(seed: int, first: int, last: int) -> Found:
    results, failures = fuzz_nets.fuzz(seed, last, seconds=SECONDS, first=first)
    found = Found()
    found.outcomes[Outcome.CLEAN_ERROR] = results["error"]
    found.outcomes[Outcome.ACCEPTED] = results.total() - results["error"] - results["fails"]
    for failure in failures:
        is_hang = failure.reason.startswith("takes more")
        name = f"fuzz_nets.py --seed {seed} --show {failure.number}"
        found.add(name, Outcome.HANG if is_hang else Outcome.CRASH, failure.reason)
    return found


CAMPAIGNS = {
    "kills": kills.jobs,
    "full disk": full_disk.jobs,
    "cut files": cut_files.jobs,
    "damaged files": flip_files.jobs,
    "bad prototxts": bad_prototxts.jobs,
    "random nets": nets,
    "bombs": bombs.jobs,
    "hostile files": hostile.jobs,
}
"""Each gives functions that make trials, in a process that does nothing else meanwhile."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, metavar="N")
    parser.add_argument("--sample", action="store_true", help="try a few faults of each kind only")
    parser.add_argument("--only", action="append", choices=CAMPAIGNS, help="a campaign")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON, too")
    args = parser.parse_args()
    print(f"seed {args.seed}\n")
    head = ["campaign", "tried", *(outcome.value for outcome in Outcome), "minutes"]
    show(head)
    show(["---"] * len(head))
    found = {}
    # Not forks of this process: what it has imported and started would be in them.
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        ProcessPoolExecutor(JOBS, context) as pool,
    ):
        world = make_world(Path(folder))
        for name in args.only or CAMPAIGNS:
            start = time.monotonic()
            jobs = list(CAMPAIGNS[name](world, str(args.seed), not args.sample))
            found[name] = one = try_all(pool, name, jobs)
            counts = [one.outcomes.total(), *(one.outcomes[outcome] for outcome in Outcome)]
            minutes = (time.monotonic() - start) / 60
            show([name, *(f"{count:,}" for count in counts), f"{minutes:.1f}"])
    if args.json:
        rows = {
            name: {outcome.value: one.outcomes[outcome] for outcome in Outcome}
            for name, one in found.items()
        }
        args.json.write_text(json.dumps({"seed": args.seed, "rows": rows}, indent=1))
    defects = [defect for one in found.values() for defect in one.defects]
    for defect in defects:
        print(f"\n{defect}")
    return 1 if defects else 0


def try_all(pool: ProcessPoolExecutor, name: str, jobs: list[Callable[[], Found]]) -> Found:
    """What became of all trials of a campaign."""
    found = Found()
    running = [pool.submit(job) for job in jobs]
    for done in tqdm(
        as_completed(running), desc=name, total=len(jobs), disable=not sys.stderr.isatty()
    ):
        found.outcomes.update(done.result().outcomes)
        found.defects.extend(done.result().defects)
    return found


def show(cells: list[str]) -> None:
    """A line of a table in Markdown."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
