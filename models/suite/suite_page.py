"""The suite's part of RESULTS.md: the table, the differences, and the page of pictures."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from bayescaffe.common import provenance
from bayescaffe.common.files import scratch_file
from comparison import bold_best
from marked_part import SUITE
from methods import COMPARED, METHODS
from plan_suite import Plan
from scores import MEASURES, Scores, difference, mcnemar
from suite_figures import page_of_pictures, shift_examples
from tasks import TASKS, read_images

FIGURE = Path("docs/figures/suite.png")
SHIFTS_FIGURE = Path("docs/figures/suite-shifts.png")
Found = dict[str, dict[str, Scores]]
"""By row and method."""


def write_page(page: Path, plan: Plan) -> list[str]:
    """Replace the suite's part of the page, or add it; return the rows that it has."""
    commit = provenance.commit(Path(__file__).parent)  # before this writes files
    found = {
        row: {name: given for name in METHODS if (given := plan.scores(row, name))} for row in TASKS
    }
    # A row needs something to compare.
    found = {row: by_method for row, by_method in found.items() if len(by_method) > 1}
    if not found:
        return []
    sources = dict.fromkeys(task.source for task in TASKS.values())
    examples = [read_images(plan.place.known / name / "test_lmdb")[0][0] for name in sources]
    for path, figure, dpi in (
        (FIGURE, page_of_pictures(found), 80),
        (SHIFTS_FIGURE, shift_examples(examples), 50),
    ):
        (page.parent / path).parent.mkdir(parents=True, exist_ok=True)
        with scratch_file(page.parent / path) as scratch:
            figure.savefig(scratch, format="png", dpi=dpi)
    if not SUITE.of(page):
        text = page.read_text() if page.exists() else ""
        page.write_text(f"{text}\n{SUITE.start}\n{SUITE.end}\n")
    SUITE.replace(page, page_text(found, plan, commit))
    return list(found)


def page_text(found: Found, plan: Plan, commit: str) -> str:
    """The Markdown between the marks."""
    count = plan.ensembles
    ensembles = "an ensemble has the seeds 1 to 5"
    if count > 1:
        ensembles = f"the {count} ensembles have the seeds 1 to 5, 6 to 10 and so on"
    origins = {origin for row in found for name in found[row] for origin in plan.origins(row, name)}
    where = by_machine(sorted(origins))
    return "\n\n".join(
        [
            "## The suite: every method, tuned alike",
            _fill(
                f"""`make suite` trained and measured these nets, and wrote this part at commit
                {commit}. The commits of the nets: {where}. Numbers are the
                mean ± standard deviation over the seeds 1 to {plan.seeds}, with
                {plan.draws} draws; {ensembles}.
                [models/suite](models/suite/README.md) says what the rows, the methods and the
                columns are. Bold is the best mean of a row."""
            ),
            scores_table(found),
            _fill(
                """Ours minus the other method, with its 95 % confidence interval over images and
                seeds. **Ahead** and **behind** mean that the interval does not contain 0; they are
                not corrected for the number of comparisons. With one ensemble or one seed the
                interval is over images alone, and p is that of McNemar's test."""
            ),
            differences_table(found),
            f"![Differences to the stock net, and error and NLL of shifted images]({FIGURE})",
        ]
    )


def by_machine(origins: Sequence[str]) -> str:
    """Texts such as "commit 1 on A", with the commits of a machine together."""
    commits: dict[str, list[str]] = {}
    for origin in origins:
        commit, machine = origin.removeprefix("commit ").split(" on ", 1)
        commits.setdefault(machine, []).append(commit)
    return "; ".join(f"{', '.join(of_one)} on {machine}" for machine, of_one in commits.items())


def scores_table(found: Found) -> str:
    """What each method scores; the best of a row are bold."""
    rows = [["row", "method", *(measure.title for measure in MEASURES.values())]]
    for row, by_method in found.items():
        columns = []
        for name, measure in MEASURES.items():
            groups = [
                measure.of(one.by_seed) if name in one.by_seed[0] else None
                for one in by_method.values()
            ]
            columns.append(bold_best(groups, measure) if any(groups) else ["–"] * len(groups))
        for place, method in enumerate(by_method):
            rows.append([row, METHODS[method].title, *(column[place] for column in columns)])
    return _table(rows)


def differences_table(found: Found) -> str:
    """Ours minus each other method of as many nets."""
    rows = [["row", "difference", *(measure.title for measure in MEASURES.values())]]
    for row, by_method in found.items():
        for ours, others in COMPARED.items():
            for other in others:
                if ours in by_method and other in by_method:
                    pair = by_method[ours], by_method[other]
                    title = f"{METHODS[ours].title} − {METHODS[other].title}"
                    rows.append([row, title, *(difference_cell(*pair, name) for name in MEASURES)])
    return _table(rows)


def difference_cell(ours: Scores, theirs: Scores, name: str) -> str:
    """Such as "−0.12 (−0.20 to −0.04) ahead"."""
    if name not in ours.resampled or name not in theirs.resampled:
        return "–"
    measure = MEASURES[name]
    found = difference(ours, theirs, name)
    verdict = found.verdict(measure.larger_is_better)
    words = [found.text(measure.digits)]
    if name == "error" and len(ours.wrong) == 1:
        words.append(f"p = {mcnemar(ours.wrong[0], theirs.wrong[0]):.2g}")
    if verdict in ("ahead", "behind"):
        words.append(f"**{verdict}**")
    return " ".join(words)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_on_hyphens=False)
