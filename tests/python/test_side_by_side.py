"""The experiments of models/ side by side: on the workers of Dask what processes do."""

import os
import sys

import pytest
from conftest import REPO

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
sys.path.append(str(REPO / "models/lenet"))
sys.path.append(str(REPO / "models/suite"))
pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from families import Place  # noqa: E402
from plan_suite import Job, run_jobs  # noqa: E402
from side_by_side import side_by_side  # noqa: E402
from steps import Step, run_chains  # noqa: E402


@pytest.fixture(scope="module")
def address(cluster):
    def forget():
        """Workers of other machines do not know where these modules are."""
        sys.path[:] = [path for path in sys.path if "models" not in path]
        return "side_by_side" in sys.modules

    with distributed.Client(cluster, set_as_default=False) as client:
        assert not any(client.run(forget).values())
    return cluster.scheduler_address


def test_jobs_run_on_workers_in_this_folder(address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = {}
    # A function and an argument of modules that only these experiments know.
    place = Place(*map(type(tmp_path), ("data", "out", "scores")))
    jobs = [
        Job("where", os.getcwd, (), 1, lambda folder: found.update(folder=folder)),
        Job("who", os.getpid, (), 2, lambda pid: found.update(pid=pid)),
        Job("what", Place.__repr__, (place,), 3, lambda text: found.update(text=text)),
    ]
    run_jobs(jobs, 1, dask=address)
    assert (found["folder"], found["text"]) == (str(tmp_path), repr(place))
    assert found["pid"] != os.getpid()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and said[2].startswith("3 of 3: ") and said[2].endswith("; 0 s left")


def test_errors_of_jobs_are_told(address, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        run_jobs([Job("bad", os.listdir, (tmp_path / "nothing-here",), 1)], 1, True, address)
    with side_by_side(1, address) as submit:
        pid = submit(os.getpid).result()
    assert pid != os.getpid()
    with pytest.raises(BayesCaffeError, match="no scheduler answers"), side_by_side(1, "x:1"):
        pass


def test_commands_run_on_workers(address, tmp_path):
    """The steps of a chain in order; a chain that is done is left alone."""

    def chain(name):
        folder = tmp_path / name
        folder.mkdir()
        first = Step(folder / "help.txt", ["inspect", "--help"], 1, True, progress=lambda: 0.5)
        more = Step(folder / "more.txt", ["sample", "--help"], 1, True, [folder / "help.txt"])
        return [first, more]

    chains = [chain("a"), chain("b")]
    run_chains(chains, 1, progress=False, dask=address)
    for name in "ab":
        assert [path.name for path in (tmp_path / name).iterdir()] == ["more.txt"]
        assert "--adaptive" in (tmp_path / name / "more.txt").read_text()
    run_chains(chains, 1, progress=False, dask="not asked for")
    (tmp_path / "c").mkdir()
    with pytest.raises(BayesCaffeError, match="`bayescaffe inspect none.prototxt` failed:\n.*none"):
        bad = Step(tmp_path / "c/x.txt", ["inspect", "none.prototxt"], 1, True)
        run_chains([[bad]], 1, progress=False, dask=address)
