"""What the service counts, in Prometheus's text format."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from bayescaffe.common.packages import import_optional

WINDOW = 1000
"""The drift is that of so many of the last answers."""
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """The counters of one service.

    Drift is told by the share of uncertain answers against that of the test set, as a number of
    standard errors: with n answers, z = (share - reference) / sqrt(reference (1 - reference) / n).
    Only answers with the service's own options count for it.
    """

    def __init__(self, waiting: Callable[[], int], reference: float | None) -> None:
        """Begin at zero.

        Args:
            waiting: tells how many images wait.
            reference: the share of uncertain answers on the test set, if it is known.
        """
        client = import_optional("prometheus_client", "bayescaffe serve")
        self.registry = client.CollectorRegistry()
        self._client, self._reference = client, reference
        self._recent: deque[bool] = deque(maxlen=WINDOW)

        def make(kind: str, name: str, text: str, *labels: str, **options: Any) -> Any:
            name = f"bayescaffe_{name}"
            return getattr(client, kind)(name, text, labels, registry=self.registry, **options)

        self.requests = make("Counter", "requests", "Requests", "path", "code")
        self.seconds = make(
            "Histogram", "predict_seconds", "Latency of POST /predict", buckets=SECONDS
        )
        self.restarts = make("Counter", "worker_restarts", "Restarts of the process that computes")
        self._batches = make(
            *("Histogram", "batch_images", "Images computed together"),
            buckets=tuple(2**n for n in range(9)),
        )
        self._decisions = make("Counter", "decisions", "Answers", "decision")
        for decision in ("accept", "repeat", "escalate"):
            self._decisions.labels(decision)
        self._entropy = make("Summary", "entropy_nats", "Entropy of the mean probabilities")
        self._epistemic = make("Summary", "epistemic_nats", "The net's own part of the entropy")
        self._uncertain = make("Counter", "uncertain", "Answers that are not certain")
        make("Gauge", "images_waiting", "Images in the queue").set_function(waiting)
        make("Gauge", "uncertain_share", f"Share of uncertain answers, last {WINDOW}").set_function(
            self.uncertain_share
        )
        if reference is not None:
            make("Gauge", "uncertain_share_reference", "The same share on the test set").set(
                reference
            )
            make(
                "Gauge", "drift_z", "Standard errors between the two shares; 3 is drift"
            ).set_function(self.drift)

    def batch(self, images: int) -> None:
        """Images were computed together."""
        self._batches.observe(images)

    def answer(self, image: dict[str, Any], is_default: bool) -> None:
        """An image was answered, with the service's own options or with others."""
        self._decisions.labels(image["decision"]).inc()
        self._entropy.observe(image["entropy"])
        self._epistemic.observe(image["epistemic"])
        if not image["certain"]:
            self._uncertain.inc()
        if is_default:
            self._recent.append(not image["certain"])

    def uncertain_share(self) -> float:
        """Of the last answers; NaN before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else math.nan

    def drift(self) -> float:
        """How many standard errors the share is above that of the test set."""
        if not self._recent:
            return math.nan
        count, share = len(self._recent), self._reference
        # A test set without an uncertain image does not say that there are none.
        spread = math.sqrt(max(share * (1 - share), 1 / count) / count)
        return (self.uncertain_share() - share) / spread

    def text(self) -> bytes:
        """All of it."""
        return self._client.generate_latest(self.registry)
