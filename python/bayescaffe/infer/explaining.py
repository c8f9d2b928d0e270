"""What would change a decision: the level of the intervals, or the rule."""

from bisect import bisect_right
from typing import Any

import numpy as np

from bayescaffe.infer.prediction import Prediction, Rule, decide
from bayescaffe.stats.decisions import DecisionRule
from bayescaffe.stats.draws import Draws

LEVELS = [number / 100 for number in range(50, 100)]
"""What is tried."""


def what_would_change(
    draws: Draws,
    prediction: Prediction,
    interval: str,
    rule: Rule,
    decisions: DecisionRule | None = None,
) -> dict[str, Any]:
    """Where the decision on one image changes, if one thing changes and the rest stays.

    level           the highest level, 0.50 to 0.99, at which it is accepted; None if at none
    accept_above    the highest threshold with which it is accepted; None if it is not certain
    escalate_below  above this threshold it is escalated, if it is not accepted
    calibrated      if a calibration accepts: the threshold from which on it does, and what this
                    image has. Then neither the level nor `accept_above` changes anything, and both
                    are None. None without such a calibration

    Args:
        draws: of this image alone.
    """
    changes: dict[str, Any] = {
        "level": None,
        "accept_above": None,
        "escalate_below": prediction.probability,
        "calibrated": None,
    }
    if decisions is not None and decisions.threshold is not None:
        (own,) = decisions.decide(draws, np.array([prediction.label])).probability.tolist()
        return changes | {"calibrated": {"probability": own, "threshold": decisions.threshold}}

    def is_refused(level: float) -> bool:
        (one,) = decide(draws, [""], level, interval, rule, None)
        return one.decision != "accept"

    # Intervals grow with the level, so what is refused at one is refused at all above it.
    accepted = bisect_right(LEVELS, False, key=is_refused)
    return changes | {
        "level": LEVELS[accepted - 1] if accepted else None,
        "accept_above": prediction.lower if prediction.certain else None,
    }
