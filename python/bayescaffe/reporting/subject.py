"""What a report is about; every section takes its numbers from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayescaffe.stats.analysis import Analysis
from bayescaffe.stats.draws import Draws


@dataclass(frozen=True)
class Subject:
    """Draws, their analysis, and the nets to compare with."""

    draws: Draws
    analysis: Analysis
    names: Sequence[str]
    """Of the classes."""
    baselines: Mapping[str, Analysis]
    """Analyses of other nets on the same images, by name."""

    @property
    def models(self) -> dict[str, Analysis]:
        """This net, then the others."""
        return {"this net": self.analysis, **self.baselines}

    @property
    def has_intervals(self) -> bool:
        """Whether the draws differ; those of a net without random layers are all equal."""
        return self.analysis.draws > 1 and self.draws.meta.get("is_random", True)

    @property
    def nets(self) -> str:
        """What classified the images."""
        if not self.has_intervals:
            return "one net"
        models = self.draws.meta.get("models") or ()
        drawn = f"{self.analysis.draws:,} networks drawn from"
        if self.analysis.draw_counts is not None:
            drawn = f"up to {drawn}"
        if not models:
            return f"{drawn} the posterior"
        if any(model.get("is_random", True) for model in models):
            return f"{drawn} the posteriors of {len(models)} trainings"
        return f"{len(models)} trained networks together"

    @property
    def level(self) -> str:
        """Level of the credible intervals."""
        return f"{100 * self.analysis.level:g}%"


def percent(share: float, digits: int = 2) -> str:
    """A share for people."""
    return f"{100 * share:.{digits}f}%"


def table(name: str, head: list[str], rows: list[list[str]]) -> dict[str, Any]:
    """A table for the template."""
    return {"name": name, "head": head, "rows": rows}


def short(value: Any) -> Any:
    """Numbers for JSON with five digits; None for what is not a number."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, np.ndarray):
        return [short(one) for one in value.tolist()]
    return float(f"{value:.5g}") if math.isfinite(value) else None
