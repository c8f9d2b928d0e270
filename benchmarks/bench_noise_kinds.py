"""Measure whether other noise than independent draws needs fewer of them for the mean prediction.

    bench_noise_kinds.py WEIGHTS … --data LMDB [--images N] [--draws N] [--repeats N]

WEIGHTS are caffemodels of `bayescaffe train`. Each kind of noise gives the mean prediction of N
draws, many times over. Its variance over the repeats, averaged over images and classes, is compared
with that of independent draws: a ratio of 0.5 means that half of the draws give the same accuracy.

    antithetic   draws in pairs, with noise e and -e
    stratified   over the N draws, the noise of each weight has one value in each Nth of the normal
                 distribution (a Latin hypercube)

Quasi-random sequences have hardly any structure left in hundreds of thousands of dimensions, so the
stratified noise stands for them: it is what they give in each dimension by itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import bayescaffe
import numpy as np
from bayescaffe.common import provenance
from bayescaffe.data.images import open_images
from bayescaffe.exporting.caffe_files import write_caffe
from bayescaffe.net.stock import stock_layers
from scipy.special import ndtri

REPO = Path(__file__).resolve().parents[1]
RESAMPLED = 1000


def independent(rng: np.random.Generator, draws: int, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal((draws, *shape), dtype=np.float32)


def antithetic(rng: np.random.Generator, draws: int, shape: tuple[int, ...]) -> np.ndarray:
    half = independent(rng, draws // 2, shape)
    return np.concatenate([half, -half])


def stratified(rng: np.random.Generator, draws: int, shape: tuple[int, ...]) -> np.ndarray:
    strata = np.broadcast_to(np.arange(draws).reshape(-1, *[1] * len(shape)), (draws, *shape))
    within = rng.random((draws, *shape))
    return ndtri((rng.permuted(strata, axis=0) + within) / draws).astype(np.float32)


KINDS: dict[str, Callable] = {
    "independent": independent,
    "antithetic": antithetic,
    "stratified": stratified,
}


class Drawn:
    """A net into which drawn weights are written."""

    def __init__(self, weights: Path, images: int, data: Path):
        import caffe

        model = bayescaffe.Model(weights)
        layers = stock_layers(model, None)
        self.random = [layer for layer in layers if layer.taus]
        with TemporaryDirectory() as folder:
            files = write_caffe(layers, "means", {}, Path(folder) / "means")
            self.net = caffe.Net(str(files[0]), caffe.TEST, weights=str(files[1]))
        (self.input,), (self.output,) = self.net.inputs, self.net.outputs
        found = open_images(data)
        model.fit(found)
        pixels, _ = found.in_order()(min(images, len(found)))
        pixels = model._transformed(pixels)
        self.net.blobs[self.input].reshape(*pixels.shape)
        self.net.blobs[self.input].data[...] = pixels

    def mean(self, kind: str, rng: np.random.Generator, draws: int) -> np.ndarray:
        """The mean prediction of some draws: images x classes."""
        noise = [
            [KINDS[kind](rng, draws, blob.shape) for blob in layer.blobs] for layer in self.random
        ]
        return np.mean([self._predicted(noise, draw) for draw in range(draws)], axis=0)

    def _predicted(self, noise: list[list[np.ndarray]], draw: int) -> np.ndarray:
        for layer, of_blobs in zip(self.random, noise, strict=True):
            parts = zip(
                self.net.params[layer.param.name], layer.blobs, layer.taus, of_blobs, strict=True
            )
            for blob, mean, tau, epsilon in parts:
                blob.data[...] = mean * (1 + tau * epsilon[draw])
        return self.net.forward()[self.output].copy()


def variances(found: np.ndarray, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """Of repeats x images x classes, the variance over the repeats, and the same resampled."""
    flat = found.reshape(len(found), -1)
    some = [flat[rng.integers(len(flat), size=len(flat))] for _ in range(RESAMPLED)]
    # Each resampled set of n has (n - 1) / n of the variance.
    widen = len(flat) / (len(flat) - 1)
    return flat.var(0, ddof=1).mean(), np.array([one.var(0, ddof=1).mean() for one in some]) * widen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path, nargs="+", metavar="WEIGHTS")
    parser.add_argument("--data", type=Path, required=True, metavar="LMDB")
    parser.add_argument("--images", type=int, default=500, metavar="N")
    parser.add_argument("--draws", type=int, default=8, metavar="N")
    parser.add_argument("--repeats", type=int, default=40, metavar="N")
    args = parser.parse_args()
    if args.draws % 2:
        parser.error(f"--draws {args.draws}: expected an even number, for pairs")
    print(f"Measured at commit `{provenance.commit(REPO)}` on {provenance.machine()}.\n")
    print("| net | noise | variance of the mean prediction, ratio | 95 % interval |")
    print("| --- | --- | --- | --- |")
    for path in args.weights:
        net, rng, known = Drawn(path, args.images, args.data), np.random.default_rng(1), None
        for kind in KINDS:
            found = np.array([net.mean(kind, rng, args.draws) for _ in range(args.repeats)])
            value, resampled = variances(found, rng)
            known = known or (value, resampled)
            low, high = np.quantile(resampled / known[1], (0.025, 0.975))
            interval = "" if kind == "independent" else f"{low:.2f} to {high:.2f}"
            print(f"| {path} | {kind} | {value / known[0]:.2f} | {interval} |", flush=True)


if __name__ == "__main__":
    main()
