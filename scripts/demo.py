"""Train a Bayesian net and say how sure it is of what. `make demo` runs it on the paper's LeNet.

    demo.py [MODEL]    a folder of models/ (default: models/lenet/bayes-plain)

Run from the top of the repository, after `bayescaffe data mnist`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from bayescaffe.posterior import inspect
from tqdm import tqdm

CAFFE = "build/caffe/tools/caffe"


def train(solver: Path, iterations: int, log_path: Path) -> str:
    """Run `caffe train`, show how far it is, and return its whole log."""
    command = [CAFFE, "train", "-solver", str(solver)]
    print("$", " ".join(command), flush=True)
    # The log is what this reads, whatever level the user's environment asks for.
    environment = {**os.environ, "GLOG_minloglevel": "0"}
    with (
        log_path.open("w") as log,
        tqdm(total=iterations, unit="it", mininterval=10, smoothing=0) as bar,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process,
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
    model = Path(sys.argv[1] if len(sys.argv) > 1 else "models/lenet/bayes-plain")
    solver = (model / "solver.prototxt").read_text()
    iterations = int(re.search(r"^max_iter: (\d+)", solver, re.M)[1])
    log = train(model / "solver.prototxt", iterations, model / "train.log")
    weights = model / f"lenet_iter_{iterations}.caffemodel"
    posterior = inspect(model / "train_test.prototxt", weights)

    print("\nUncertainty learned (tau: standard deviation of a weight / its |mean|)")
    print(f"{'layer':<8}{'weights':>9}{'tau':>11}{'biases':>8}{'tau_b':>11}")
    for layer in posterior:
        print(
            f"{layer.name:<8}{layer.weights:>9,}{layer.tau:>11.6f}"
            f"{layer.biases:>8,}{layer.tau_bias:>11.6f}"
        )
    accuracy = float(re.findall(r"accuracy = (\S+)", log)[-1])
    print(f"\nTest error of a single pass: {1 - accuracy:.2%}")


if __name__ == "__main__":
    main()
