"""The command line as a whole: what happens to its output, and what every command shares."""

import json
import subprocess
import sys

import numpy as np
import pytest
from bayescaffe.cli import build_parser
from bayescaffe.stats.draws import save_draws
from conftest import PLAIN_ENVIRONMENT


@pytest.fixture
def draws(tmp_path):
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(5), (50, 60)).astype(np.float32)
    save_draws(tmp_path / "x.npz", probabilities, random.integers(0, 5, 60), {})
    return tmp_path / "x.npz"


def run(*arguments, **options):
    command = [sys.executable, "-m", "bayescaffe", *map(str, arguments)]
    return subprocess.run(command, text=True, env=PLAIN_ENVIRONMENT, **options)


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "JSON"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_reads_the_output(draws, more, unbuffered):
    """As in `bayescaffe analyze … | head -0`: no complaint, and the exit code of SIGPIPE."""
    command = [sys.executable, "-m", "bayescaffe", "analyze", str(draws), *more]
    environment = {**PLAIN_ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 141)
    process.stderr.close()


def test_output_that_is_read_is_complete(draws):
    done = run("analyze", draws, "--json", capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["images"] == 60


@pytest.mark.parametrize(
    "arguments",
    ["analyze draws.npz", "report draws.npz", "predict net weights image"],
    ids=lambda text: text.split()[0],
)
def test_intervals_are_chosen_alike_by_all_commands(arguments):
    parse = build_parser().parse_args
    args = parse(arguments.split())
    assert (args.level, args.interval) == (0.95, "equal-tailed")
    args = parse([*arguments.split(), "--level", "0.5", "--interval", "hdi"])
    assert (args.level, args.interval) == (0.5, "hdi")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--seed=-1", "argument --seed: -1 is not within 0..4294967295"),
        ("--passes=0", "argument --passes: 0 is not 1 or more"),
        ("--shape=28x28", "argument --shape: '28x28' is not CxHxW, such as 1x28x28"),
        ("--shape=axbxc", "argument --shape: 'axbxc' is not CxHxW, such as 1x28x28"),
        ("--shape=1x0x3", "argument --shape: '1x0x3' is not CxHxW, such as 1x28x28"),
    ],
)
@pytest.mark.parametrize("command", ["sample", "predict"])
def test_errors_name_the_option(capsys, command, option, message):
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args([command, "net", "weights", "image", option])
    assert message in capsys.readouterr().err
