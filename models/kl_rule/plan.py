"""Which runs the measurement is made of."""

from runs import Run
from setups import SETUPS

SCALES = (1e-8, 4e-8, 1.6e-7, 6.4e-7, 2.5e-6, 1e-5)
"""kl_weight / dataset_size."""
SEEDS = (1, 2, 3)
DRAWN_SEEDS = (1, 2, 3, 4, 5)
"""Each is another set of pictures."""


def planned(names: list[str] | None = None) -> list[Run]:
    """The runs of some set-ups, or of all: what each scale gives, and what the defaults give."""
    runs = []
    for name in names or SETUPS:
        runs += [Run(name, "bayes", scale) for scale in SCALES]
        drawn = SETUPS[name].is_drawn
        kinds = ("stock", "bayes", "bayes-weights", "bayes-solver")
        for seed in DRAWN_SEEDS if drawn else SEEDS:
            runs += [Run(name, kind, seed=seed) for kind in kinds[: 4 if drawn else 2]]
    return runs
