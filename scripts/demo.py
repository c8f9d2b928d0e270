"""Train the paper's Bayesian LeNet on MNIST and say how it did. Run by `make demo`.

Expect about eight minutes on two cores, and an error near 1 % of a single pass.
"""

import re
import subprocess
import sys
from pathlib import Path

from bayescaffe.data import prepare
from bayescaffe.posterior import read_posterior
from tqdm import tqdm

CAFFE = "build/caffe/tools/caffe"
MODEL = Path("models/lenet/bayes-plain")
ITERATIONS = 10_000


def train(log_path: Path) -> str:
    """Run `caffe train`, show how far it is, and return its whole log."""
    command = [CAFFE, "train", "-solver", str(MODEL / "solver.prototxt")]
    print("$", " ".join(command), flush=True)
    with (
        log_path.open("w") as log,
        tqdm(total=ITERATIONS, unit="it", mininterval=10, smoothing=0, ncols=80) as bar,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
    ):
        for line in process.stderr:
            log.write(line)
            if found := re.search(r"Iteration (\d+)[ ,].*loss = (\S+)", line):
                bar.set_postfix_str(f"loss {float(found[2]):.3f}", refresh=False)
                bar.update(int(found[1]) - bar.n)
            if found := re.search(r"accuracy = (\S+)", line):
                bar.set_description(f"test error {1 - float(found[1]):.2%}", refresh=False)
    if process.returncode:
        sys.exit(f"demo: caffe train failed; its log is {log_path}")
    return log_path.read_text()


def main() -> None:
    prepare("mnist", out="data/mnist")
    log = train(MODEL / "train.log")
    accuracy = float(re.findall(r"accuracy = (\S+)", log)[-1])
    posterior = read_posterior(MODEL / f"lenet_iter_{ITERATIONS}.caffemodel")

    print("\nUncertainty learned (tau: standard deviation of a weight / its |mean|)")
    print(f"{'layer':<8}{'weights':>9}{'tau':>11}{'biases':>8}{'tau_b':>11}")
    for layer in posterior:
        print(
            f"{layer.name:<8}{layer.weights:>9,}{layer.tau:>11.6f}"
            f"{layer.biases:>8,}{layer.tau_bias:>11.6f}"
        )
    print(f"\nTest error of a single pass over 10,000 images: {1 - accuracy:.2%}")


if __name__ == "__main__":
    main()
