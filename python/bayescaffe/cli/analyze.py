"""The command `bayescaffe analyze`: its arguments, its help and its output."""

from __future__ import annotations

import argparse
import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import add_calibration_argument, add_interval_arguments, share
from bayescaffe.common.errors import BayesCaffeError

if TYPE_CHECKING:
    from bayescaffe.stats.analysis import Analysis
    from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)

DESCRIPTION = """\
Report how accurate a net is, how well it knows when it is wrong, and why it is uncertain.

DRAWS is a file written by `bayescaffe sample`: class probabilities of images, one set for each
network drawn from the posterior. The prediction is the class with the largest mean probability. The
spread of the draws gives each class a credible interval. A prediction is certain if its interval
overlaps the interval of no other class.

Several DRAWS, or a folder of them as `bayescaffe sample --parts` leaves it, are parts of one. They
are read a few images at a time, and the figures are those of the file that `bayescaffe merge` would
write.

If DRAWS has no labels, the error and everything that depends on it is left out.

--stopping-rule writes a rule for adaptive sampling. DRAWS must be of images that the net was not
trained with, like those that the rule is for, with all draws of each. With 95 % confidence, at most
the share --error of such images then gets another class, or another verdict (certain or not at this
--level), than all draws would give. An error of 0.001 needs 2,995 images or more."""

EPILOG = """\
examples:
  bayescaffe analyze draws.npz                       print all figures, each with its meaning
  bayescaffe analyze draws.npz --level 0.99          wider intervals: fewer images are certain
  bayescaffe analyze draws.npz --csv images.csv      one line per image, to sort and filter
  bayescaffe analyze digits.npz --ood clothes.npz    does the net detect out-of-distribution images?
  bayescaffe analyze draws.npz --json                JSON for programs
  bayescaffe analyze parts/                          all parts together, without a file of them
  bayescaffe analyze draws.npz --calibration calibration.json   coverage, error of the accepted
  bayescaffe analyze held-out.npz --stopping-rule rule.json    for `sample --adaptive rule.json`

docs/metrics.md has the formula of each figure."""

CERTAIN = "(the predicted class's interval overlaps no other)"


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `analyze` to the command line."""
    parser = subparsers.add_parser(
        "analyze",
        parents=[common],
        help="measure accuracy, calibration and uncertainty",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "draws",
        type=Path,
        nargs="+",
        metavar="DRAWS",
        help="file from `bayescaffe sample`; several, or a folder of them, are parts of one",
    )
    add_interval_arguments(parser)
    parser.add_argument(
        "--ood",
        type=Path,
        metavar="DRAWS2",
        help="draws of the same net for out-of-distribution images: how well does it detect them?",
    )
    parser.add_argument(
        "--bins",
        type=int,
        default=15,
        metavar="N",
        help="number of bins for the calibration errors (default: %(default)s)",
    )
    parser.add_argument(
        "--stopping-rule",
        type=Path,
        metavar="FILE",
        help="write a rule for `sample --adaptive` and `predict --adaptive`, calibrated with DRAWS",
    )
    parser.add_argument(
        "--error",
        type=share,
        metavar="E",
        help="with --stopping-rule: the largest share of images that may get another class or "
        "verdict than all draws would give (default: 0.001)",
    )
    add_calibration_argument(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one line per image")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.common.files import scratch_file
    from bayescaffe.stats.analysis import analyze
    from bayescaffe.stats.merging import open_draws
    from bayescaffe.stats.stopping import DEFAULT_ERROR, stopping_rule

    _keep_apart(args)
    one = args.draws[0] if len(args.draws) == 1 else None
    name = str(one or f"{args.draws[0]} and {len(args.draws) - 1} more")
    draws = open_draws(one or args.draws)
    rule = None
    if args.stopping_rule is not None:
        error = DEFAULT_ERROR if args.error is None else args.error
        rule = stopping_rule(draws, error, args.level, args.interval)
    elif args.error is not None:
        raise BayesCaffeError("--error: needs --stopping-rule")
    found = analyze(
        draws,
        level=args.level,
        interval=args.interval,
        ood=args.ood,
        bins=args.bins,
        calibration=args.calibration,
        progress=not args.quiet,
    )
    summary = {
        "draws_file": name,
        "ood_file": args.ood and str(args.ood),
        **found.summary(),
        **({} if rule is None else {"stopping_rule": rule.as_dict()}),
    }
    if args.csv is not None:
        found.write_csv(args.csv)
        log.info("wrote %s", args.csv)
    if args.out is not None:
        with scratch_file(args.out) as scratch:
            scratch.write_text(json.dumps(summary, indent=2) + "\n")
        log.info("wrote %s", args.out)
    if rule is not None:
        rule.save(args.stopping_rule)
        log.info("wrote %s", args.stopping_rule)
        if rule.settled == 0:
            log.warning("%s: settles none of these images, so it saves nothing", args.stopping_rule)
    if args.json:
        print(json.dumps(summary))
        return
    print(describe(found, name, args.ood))
    if rule is not None:
        print("\n" + "\n".join(_stopping(rule)))


def _keep_apart(args: argparse.Namespace) -> None:
    """Raise if a file to write is also a file to read, or is given twice."""
    read = (*args.draws, args.ood, args.calibration)
    taken = {path.resolve() for path in read if path is not None}
    written = {"--csv": args.csv, "--out": args.out, "--stopping-rule": args.stopping_rule}
    for option, path in written.items():
        if path is not None:
            if path.resolve() in taken:
                raise BayesCaffeError(f"{option} {path}: is already used for another file")
            taken.add(path.resolve())


def describe(found: Analysis, draws: str | Path, ood: Path | None = None) -> str:
    """The figures on one screen, each with a few words about its meaning."""
    drawn = f"{found.draws:,} draw{'s' * (found.draws > 1)}"
    if found.draw_counts is not None:
        drawn = f"up to {drawn} ({found.mean_draws:.1f} on average)"
    if found.is_analytic:
        drawn += " of the scores (analytic)"
    lines = [
        f"{draws}: {drawn} x {found.images:,} images, "
        f"{found.classes} classes; "
        f"{100 * found.level:g} % intervals ({found.interval})",
        *(f"warning: {warning}" for warning in found.warnings),
        "",
    ]
    if found.labels is None:
        certain = int(found.certain.sum())
        lines += [
            _line("certain", f"{certain:,}", f"of {found.images:,} images {CERTAIN}"),
            "  (no labels in this file: no error and no calibration)",
        ]
    else:
        lines += _errors(found)
    lines += ["", *_uncertainty(found)]
    if found.ood is not None:
        lines += ["", *_out_of_distribution(found.ood, ood)]
    if found.decisions is not None:
        lines += ["", *_decisions(found)]
    return "\n".join(lines)


def _decisions(found: Analysis) -> list[str]:
    told = found.summary()["decisions"]
    lines = [f"Are the decisions safe?  (--calibration; temperature {told['temperature']:.3f})"]
    if told["coverage"] is not None:
        low, high = map(_percent, told["coverage_interval"])
        note = f"of images have their class in their set ({low} to {high}); asked for "
        note += f"{100 * told['level']:g} %"
        lines.append(_line("coverage", _percent(told["coverage"]), note))
    sizes = told["set_sizes"]
    most = max(number for number, count in enumerate(sizes) if count)
    note = f"classes in a set on average ({told['method']}); {sizes[0]:,} empty, at most {most}"
    lines.append(_line("set size", f"{told['mean_set_size']:.3f}", note))
    if told["accepted"] is None:
        return lines
    share = _percent(told["accepted"] / found.images)
    lines.append(_line("accepted", share, f"{told['accepted']:,} of {found.images:,} images"))
    if told["accepted_error"] is not None:
        low, high = told["accepted_error_interval"]
        lines += [
            _line(
                "their error",
                _percent(told["accepted_error"]),
                f"{told['accepted_wrong']:,} wrong; {_percent(low)} to {_percent(high)} by the "
                "exact 95 % interval",
            ),
            f"  With {told['confidence']:.0%} confidence in the calibration, it is at most "
            f"{100 * told['error_target']:g} % for all images like those.",
        ]
    return lines


def _errors(found: Analysis) -> list[str]:
    figures, table = found.metrics, found.table
    wrong = table["wrong_certain"] + table["wrong_uncertain"]
    risks = found.summary()["risk_at_coverage"]
    best = figures["aurc"] - figures["excess_aurc"]
    bins = len(found.reliability)
    return [
        _line("error", _percent(figures["error"]), f"{wrong:,} of {found.images:,} images wrong"),
        _line(
            "single draw",
            _percent(figures["single_draw_error"]),
            "error of one draw on its own, mean over the draws",
        ),
        "",
        f"{'':14}{'certain':>10}{'uncertain':>12}   {CERTAIN}",
        *(
            f"  {row:12}{table[f'{row}_certain']:>10,}{table[f'{row}_uncertain']:>12,}"
            for row in ("correct", "wrong")
        ),
        "",
        "Are the probabilities right?",
        _line("NLL", f"{figures['nll']:.4f}", "mean of -ln(probability of the true class); best 0"),
        _line(
            "Brier score",
            f"{figures['brier']:.4f}",
            "squared error over all classes; best 0, worst 2",
        ),
        _line(
            "ECE",
            f"{figures['ece']:.4f}",
            f"gap between confidence and accuracy, {bins} bins; best 0",
        ),
        _line(
            "adaptive ECE",
            f"{figures['adaptive_ece']:.4f}",
            "the same with equal numbers of images per bin",
        ),
        "",
        "Does it know when it is wrong?  (error if only the most confident images are answered)",
        f"  {'answered':12}" + "".join(f"{100 * one['coverage']:>8g} %" for one in risks),
        f"  {'error':12}" + "".join(f"{_percent(one['risk']):>10}" for one in risks),
        _line(
            "AURC",
            f"{figures['aurc']:.5f}",
            f"mean error over all shares answered; best {best:.5f}",
        ),
        _line(
            "by epistemic",
            f"{figures['aurc_epistemic']:.5f}",
            "AURC if images with the lowest epistemic come first",
        ),
    ]


def _uncertainty(found: Analysis) -> list[str]:
    lines = [f"How uncertain is it, and why?  (nats, 0 to {math.log(found.classes):.3f})"]
    if found.ood is not None:
        lines.append(f"{'':14}{'DRAWS':>10}{'OOD':>12}")
    for name, note in {
        "entropy": "total: aleatoric + epistemic",
        "aleatoric": "each draw on its own is uncertain: ambiguous images",
        "epistemic": "the draws disagree: the net has not learned enough",
    }.items():
        other = "" if found.ood is None else f"{found.ood[name]:>12.4f}"
        lines.append(f"  {name:12}{getattr(found, name).mean():>10.4f}{other}   {note}")
    if found.between_models is not None:
        between = f"{found.between_models.mean():.4f}"
        other = "" if found.ood is None else " " * 12
        note = "the part of epistemic between the models, each taken by its mean"
        lines.append(f"  {'between':12}{between:>10}{other}   {note}")
    return lines


def _out_of_distribution(ood: dict, path: Path | None) -> list[str]:
    source = "" if path is None else f"{path}, "
    return [
        f"Does it detect out-of-distribution images?  ({source}{ood['images']:,} images)",
        f"{'':14}{'AUROC':>10}{'FPR95':>12}",
        *(
            f"  {name:12}{score['auroc']:>10.4f}{_percent(score['fpr95']):>12}"
            for name, score in ood["scores"].items()
        ),
        "  AUROC: chance that an OOD image is more suspicious than another image; best 1",
        "  FPR95: share of other images flagged when 95 % of the OOD images are; best 0 %",
        _line("certain", f"{ood['certain']:,}", f"of {ood['images']:,} OOD images; best 0"),
    ]


def _stopping(rule: StoppingRule) -> list[str]:
    return [
        "Do fewer draws give the same answer?  (class and verdict; --adaptive)",
        _line("draws", f"{rule.mean_draws:.1f}", f"of {rule.passes} on average with this rule"),
        _line("settled", _percent(rule.settled), "of these images before the last draw"),
        _line(
            "another",
            f"{rule.disagreements:,}",
            f"of {rule.images:,} images get another answer than by all draws",
        ),
        f"  With {rule.confidence:.0%} confidence, this is at most {100 * rule.error:g} % of all "
        "images like these.",
    ]


def _line(name: str, value: str, note: str) -> str:
    return f"  {name:12}{value:>10}   {note}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
