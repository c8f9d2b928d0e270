"""Net.sample with draw_memory gives the bits that it gives without, whatever happens in between."""

import gc
import pathlib
import weakref

import bayescaffe
import numpy as np
import pytest
from bayescaffe.common.errors import BayesCaffeError
from conftest import (
    assert_same,
    input_net,
    make_net,
    python,
    save_weights,
    small_net,
    write_solver,
)

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

from test_sample import BAYES, IMAGES, NETS, dropout, large, small  # noqa: E402

pytestmark = pytest.mark.engine
MEMORY = 2**26


def assert_kept_is_fresh(net, draws=5, images=IMAGES, output="out"):
    """Twice, as the first call after a change draws and the second uses what was drawn."""
    fresh = net.sample(draws, images, output=output)
    for _ in range(2):
        kept = net.sample(draws, images, output=output, draw_memory=MEMORY)
        assert np.array_equal(kept, fresh)
    return fresh


@pytest.mark.parametrize("name", NETS)
def test_kept_draws_have_the_bits_of_fresh_ones(tmp_path, name):
    """One image and many; all draws kept, some, and none."""
    net = make_net(tmp_path, NETS[name])
    size = 4 * sum(blob.count for params in net.params.values() for blob in params)
    for images in (IMAGES, IMAGES[:1]):
        fresh = net.sample([0, 1, 2, 3, 2, 2**40], images, output="out")
        for draw_memory in (MEMORY, 3 * size, 100, 0):
            for _ in range(3):
                kept = net.sample(
                    [0, 1, 2, 3, 2, 2**40], images, output="out", draw_memory=draw_memory
                )
                assert np.array_equal(kept, fresh)


def write_mean(net, tmp_path):
    net.params["hidden"][0].data[3, 1] += 0.5


def write_delta(net, tmp_path):
    net.params["conv"][2].data[...] += 0.25


def write_bias(net, tmp_path):
    net.params["out"][1].data[...] = np.arange(4)


def write_floor(net, tmp_path):
    """A delta below its floor, which sampling raises."""
    net.params["hidden"][2].data[...] = -1000


def copy_weights(net, tmp_path):
    (tmp_path / "other").mkdir()
    net.copy_from(str(save_weights(tmp_path / "other", small())[1]))


def share_weights(net, tmp_path):
    """The blobs get other memory."""
    (tmp_path / "other").mkdir()
    write_shared.other = make_net(tmp_path / "other", small(), seed=7)
    net.share_with(write_shared.other)


def write_shared(net, tmp_path):
    """A write to the net that this one shares its parameters with."""
    share_weights(net, tmp_path)
    net.sample(5, IMAGES, draw_memory=MEMORY)
    write_shared.other.params["out"][0].data[0, 0] += 1


@pytest.mark.parametrize(
    "change",
    [
        write_mean,
        write_delta,
        write_bias,
        write_floor,
        copy_weights,
        share_weights,
        write_shared,
    ],
)
def test_draws_are_dropped_when_the_posterior_changes(tmp_path, change):
    net = make_net(tmp_path, small())
    before = assert_kept_is_fresh(net)
    change(net, tmp_path)
    kept = net.sample(5, IMAGES, draw_memory=MEMORY)
    assert not np.array_equal(kept, before)
    assert np.array_equal(kept, net.sample(5, IMAGES))


def test_weights_that_are_not_bayesian_may_change_too(tmp_path):
    text = NETS["other layers"].replace(
        'name: "out" type: "BayesInnerProduct"', 'name: "out" type: "InnerProduct"'
    )
    net = make_net(tmp_path, text)
    net.params["norm"][2].data[...] = 1  # what its sums are divided by
    before = assert_kept_is_fresh(net)
    for layer in ("out", "scale", "norm"):
        net.params[layer][0].data[...] += 1
        after = net.sample(5, IMAGES, draw_memory=MEMORY)
        assert not np.array_equal(before, after)
        before = assert_kept_is_fresh(net)
        assert np.array_equal(before, after)


def test_training_steps_are_seen(tmp_path, digits):
    solver = pycaffe.SGDSolver(str(write_solver(tmp_path, small_net(digits, BAYES), max_iter=10)))
    test_net = make_net(tmp_path, small())
    test_net.share_with(solver.net)
    before = assert_kept_is_fresh(test_net)
    for _ in range(3):
        solver.step(1)
        after = assert_kept_is_fresh(test_net)
        assert not np.array_equal(before, after)
        before = after


def test_other_shapes_outputs_and_draws(tmp_path):
    net = make_net(tmp_path, small(more=dropout()))
    expected = assert_kept_is_fresh(net)
    assert_kept_is_fresh(net, output="hidden")
    assert np.array_equal(assert_kept_is_fresh(net), expected)
    assert np.array_equal(net.sample([4, 1], IMAGES, draw_memory=MEMORY), expected[[4, 1]])
    net.blobs["data"].reshape(3, 1, 12, 12)
    assert_same(net.sample(5, IMAGES, draw_memory=MEMORY), expected)
    # A forward pass of the net itself has other weights in other memory.
    net.set_draw(3)
    net.blobs["data"].data[...] = IMAGES[:3]
    assert_same(net.forward()["out"], expected[3, :3])
    assert_same(net.sample(5, IMAGES, draw_memory=MEMORY), expected)


def test_portions_of_few_draws(tmp_path):
    """The threads then share a draw, of which one of them keeps the weights."""
    images = np.random.default_rng(1).random((400, 1, 64, 64)).astype(np.float32)
    net = make_net(tmp_path, large(batch=64))
    for draws in (1, 2, [5, 1, 5]):
        assert_kept_is_fresh(net, draws, images)


def test_a_callback_may_sample_too(tmp_path):
    net = make_net(tmp_path, small())
    expected = net.sample(5, IMAGES)
    inner = []

    def sample_again(_):
        inner.append(net.sample(5, IMAGES[:1], draw_memory=MEMORY))

    for _ in range(2):
        found = net.sample(5, IMAGES, draw_memory=MEMORY, progress=sample_again)
        assert np.array_equal(found, expected)
    for one in inner:
        assert_same(one, expected[:, :1])


def test_an_interrupted_call_leaves_nothing_wrong(tmp_path):
    net = make_net(tmp_path, small())
    expected = net.sample(5, IMAGES)

    def fail(_):
        raise RuntimeError("stop here")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="stop here"):
            net.sample(5, IMAGES, draw_memory=MEMORY, progress=fail)
        assert np.array_equal(net.sample(5, IMAGES, draw_memory=MEMORY), expected)


def test_a_net_does_not_outlive_its_references(tmp_path):
    net = make_net(tmp_path, small())
    net.sample(5, IMAGES, draw_memory=MEMORY)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


# MiB of anonymous memory that three calls leave, with a budget and then without.
LEFT = """
import caffe, numpy as np, pathlib
def anonymous():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
caffe.set_random_seed(1)
net = caffe.Net(NET, caffe.TEST)
image = np.ones((1, *net.blobs["data"].data.shape[1:]), np.float32)
net.sample(4, image)
before = anonymous()
for _ in range(3):
    net.sample(100, image, draw_memory=BUDGET)
print(anonymous() - before)
net.sample(4, image)
print(anonymous() - before)
"""


def test_memory_is_what_was_allowed(tmp_path):
    """A draw of this net has 4 MiB."""
    text = input_net(small_net(pathlib.Path(), BAYES), 1)
    text += """
        layer { name: "wide" type: "BayesInnerProduct" bottom: "data" top: "wide"
                inner_product_param { num_output: 7282 weight_filler { type: "xavier" } }
                bayes_param { kl_weight: 0 } }
        layer { name: "both" type: "Concat" bottom: "wide" bottom: "out" top: "both" }"""
    (tmp_path / "net.prototxt").write_text(text)
    program = f"NET, BUDGET = {str(tmp_path / 'net.prototxt')!r}, 2**26\n{LEFT}"
    # A fixed threshold, so that malloc returns what is freed and does not keep it for later.
    found = python(program, OMP_NUM_THREADS="2", MALLOC_MMAP_THRESHOLD_="65536")
    kept, dropped = map(float, found.split())
    # 64 MiB, and for each thread the copy of the net and a draw that is not kept.
    assert 55 < kept < 64 + 2 * 12
    assert dropped < 2 * 12


@pytest.mark.parametrize("bad", [-1, 0.5])
def test_nonsense_is_refused(tmp_path, bad):
    net = make_net(tmp_path, small())
    with pytest.raises(ValueError, match=f"draw_memory: {bad} is not a number of bytes"):
        net.sample(2, IMAGES, draw_memory=bad)
    with pytest.raises(BayesCaffeError, match=f"draw_memory={bad}: is not a number of bytes"):
        bayescaffe.Model("net.prototxt", "net.caffemodel", draw_memory=bad)
