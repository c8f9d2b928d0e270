"""Net.sample gives what set_draw and forward give, image by image and draw by draw."""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    assert_same,
    assert_same_bits,
    blobs,
    input_net,
    make_net,
    python,
    small_net,
    write_solver,
)

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"
BATCH = 5
IMAGES = np.random.default_rng(0).random((37, 1, 12, 12)).astype(np.float32)


class Halve(pycaffe.Layer):
    """A layer of Python that works on each image for itself."""

    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data / 2


class Count(Halve):
    """Counts how often it runs."""

    runs = 0

    def forward(self, bottom, top):
        Count.runs += 1
        super().forward(bottom, top)


class Fail(Halve):
    def forward(self, bottom, top):
        raise RuntimeError("this layer fails")


def python_layer(name, blob="hidden"):
    return f"""layer {{ name: "{name}" type: "Python" bottom: "{blob}" top: "{blob}"
                        python_param {{ module: "{__name__}" layer: "{name}" }} }}"""


def dropout(top="hidden"):
    return f"""layer {{ name: "drop" type: "Dropout" bottom: "hidden" top: "{top}"
                        dropout_param {{ dropout_ratio: 0.3 sample_weights_test: true }} }}"""


def product(name, bottom, outputs=4, more="", kind="BayesInnerProduct"):
    return f"""
        layer {{
          name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" {more}
          inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }}
          bayes_param {{ {BAYES} }}
        }}"""


def image_input(name, batch=BATCH):
    return f"""layer {{ name: "{name}" type: "Input" top: "{name}"
                        input_param {{ shape {{ dim: {batch} dim: 1 dim: 12 dim: 12 }} }} }}"""


def scale(bottom, top=None, more=""):
    return f"""layer {{ name: "scale" type: "BayesScale" bottom: "{bottom}" top: "{top or bottom}"
                        scale_param {{ {more} }} bayes_param {{ {BAYES} bias_tau_init: 0.5 }} }}"""


def join(*bottoms, top="out"):
    bottoms = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    return f'layer {{ name: "join" type: "Concat" {bottoms} top: "{top}" }}'


def small(bayes=BAYES, more="", batch=BATCH):
    return input_net(small_net(Path(), bayes, more), batch)


SHARED = 'param { name: "m" } param { name: "m_b" } param { name: "d" } param { name: "d_b" }'
FIXED_CONVOLUTION = small().replace('"BayesConvolution"', '"Convolution"')
NETS = {
    "bayesian": small(),
    "dropout in place": small(more=dropout()),
    "dropout alone": small(None, dropout()),
    "dropout not in place": small(None, dropout("dropped")).replace(
        'bottom: "hidden" top: "out"', 'bottom: "dropped" top: "out"'
    ),
    "deterministic at first": FIXED_CONVOLUTION,
    "deterministic hidden layer": small().replace(
        'name: "hidden" type: "BayesInnerProduct"', 'name: "hidden" type: "InnerProduct"'
    ),
    "nothing random": small(None),
    "never sampled": small(BAYES + " sample: NEVER"),
    "sampled in training": small(BAYES + " sample: TRAIN_ONLY"),
    "KL top": small().replace(
        'top: "hidden" bayes_param',
        'top: "hidden" top: "kl" loss_weight: 0 loss_weight: 1 bayes_param',
    ),
    "shared parameters": image_input("data")
    + product("a", "data", more=SHARED)
    + product("b", "data", more=SHARED)
    + join("a", "b"),
    "Python layer": small(more=python_layer("Halve")),
    "other layers": small(
        more="""
        layer { name: "scale" type: "Scale" bottom: "hidden" top: "hidden"
                scale_param { bias_term: true filler { type: "gaussian" std: 1 } } }
        layer { name: "prelu" type: "PReLU" bottom: "hidden" top: "hidden" }
        layer { name: "norm" type: "BatchNorm" bottom: "hidden" top: "hidden" }
        """
    ),
    "scale in place": small(more=scale("hidden", more="bias_term: true bias_filler { value: 1 }")),
    "scale of one number": small(more=scale("hidden", more="axis: 0 num_axes: 0")),
    "scale that is not in place": image_input("data")
    + product("a", "data")
    + scale("a", "out", 'filler { type: "gaussian" std: 1 }'),
    "scale of each image of a batch": small(more=scale("hidden", more="axis: 0 num_axes: 1")),
    "embedded indices": image_input("data")
    + """layer { name: "indices" type: "Threshold" bottom: "data" top: "indices"
                 threshold_param { threshold: 0.5 } }
         layer { name: "embed" type: "BayesEmbed" bottom: "indices" top: "embed"
                 embed_param { input_dim: 2 num_output: 3
                               weight_filler { type: "gaussian" std: 1 } }
                 bayes_param { kl_weight: 0 } }"""
    + product("out", "embed"),
    "branch that is not random": image_input("data")
    + product("a", "data")
    + product("b", "data", kind="InnerProduct")
    + join("a", "b"),
    "shape with the batch in it": image_input("data")
    + product("a", "data")
    + f"""layer {{ name: "reshape" type: "Reshape" bottom: "a" top: "out"
                   reshape_param {{ shape {{ dim: {BATCH} dim: 2 dim: 2 }} }} }}""",
}


def by_hand(net, draws, inputs, output="out"):
    """What net.sample is to return: each draw by set_draw and forward, batch by batch."""
    inputs = inputs if isinstance(inputs, dict) else {net.inputs[0]: inputs}
    images = len(next(iter(inputs.values())))
    batch = net.blobs[net.inputs[0]].data.shape[0]
    result = []
    for draw in range(draws) if isinstance(draws, int) else draws:
        rows = []
        for first in range(0, images, batch):
            count = min(batch, images - first)
            for name, array in inputs.items():
                net.blobs[name].data[:count] = array[first : first + count]
            net.set_draw(int(draw))
            net.forward()
            rows.append(net.blobs[output].data[:count].copy())
        result.append(np.concatenate(rows))
    return np.array(result)


@pytest.mark.parametrize("name", NETS)
def test_it_is_set_draw_and_forward(tmp_path, name):
    net = make_net(tmp_path, NETS[name])
    # One draw and many, in any order, twice; all images, one image, a whole batch.
    for draws, images in (
        (9, IMAGES),
        (1, IMAGES),
        ([7, 2, 2**40, 2, 0], IMAGES),
        (np.array([3]), IMAGES[:1]),
        (4, IMAGES[:5]),
    ):
        found = net.sample(draws, images, output="out")
        assert_same(found, by_hand(net, draws, images))
        assert found.dtype == np.float32


def test_draws_differ_and_images_differ(tmp_path):
    """What the comparison above would not see: the same numbers everywhere."""
    found = make_net(tmp_path, NETS["bayesian"]).sample(6, IMAGES)
    assert len({draw.tobytes() for draw in found}) == 6
    assert len({image.tobytes() for image in found[0]}) == len(IMAGES)
    found = make_net(tmp_path, NETS["shared parameters"]).sample(6, IMAGES)
    assert_same(found[..., :4], found[..., 4:])


def test_draws_belong_to_the_seed_of_the_net(tmp_path):
    """And not to the seed at the time of sampling."""
    net = make_net(tmp_path, NETS["dropout in place"], seed=5)
    expected = by_hand(net, 3, IMAGES)
    pycaffe.set_random_seed(6)
    assert_same(net.sample(3, IMAGES), expected)


def test_shared_parameters_have_the_noise_of_their_owner(tmp_path):
    """Even where the output does not depend on that layer."""
    net = make_net(tmp_path, NETS["shared parameters"])
    for layer in ("a", "b"):
        assert_same(net.sample(3, IMAGES, output=layer), by_hand(net, 3, IMAGES, layer))


def large(batch=BATCH):
    """Images so large that a few hundred of them are several portions."""
    return small(batch=batch).replace("dim: 12 dim: 12", "dim: 64 dim: 64")


def test_many_portions_of_a_draw(tmp_path):
    """The weights are drawn once for all portions of a draw, and anew for the next draw."""
    images = np.random.default_rng(1).random((400, 1, 64, 64)).astype(np.float32)
    net = make_net(tmp_path, large(batch=64))
    for draws in (1, 2, [5, 1, 5, 0, 3, 2, 9]):
        assert_same(net.sample(draws, images), by_hand(net, draws, images))


def test_more_images_than_are_collected_at_once(tmp_path):
    # 64 MiB hold 64 images of these.
    text = small(batch=7).replace("dim: 12 dim: 12", "dim: 512 dim: 512")
    net = make_net(tmp_path, text.replace("kernel_size: 3 stride: 2", "kernel_size: 9 stride: 32"))
    images = np.random.default_rng(1).random((70, 1, 512, 512), dtype=np.float32)
    found, kept = net.sample(2, images, keep="data")
    assert np.array_equal(kept["data"], images)
    assert_same(found, by_hand(net, 2, images))


def test_any_batch_gives_the_same_bits(tmp_path):
    results = [
        make_net(tmp_path, small(more=dropout(), batch=batch)).sample(3, IMAGES)
        for batch in (1, 4, 37, 50)
    ]
    for other in results[1:]:
        assert_same(other, results[0])


def test_layers_before_the_first_random_one_run_once(tmp_path):
    layers = FIXED_CONVOLUTION.replace(
        'layer {\n          name: "hidden"',
        python_layer("Count", "conv") + 'layer { name: "hidden"',
    )
    net = make_net(tmp_path, layers)
    Count.runs = 0
    found = net.sample(20, IMAGES)
    assert Count.runs == 8  # batches of 5 that hold 37 images
    assert_same(found, by_hand(net, 20, IMAGES))


def test_python_layers_of_the_random_part_run_for_each_draw(tmp_path):
    net = make_net(tmp_path, small(more=python_layer("Count")))
    Count.runs = 0
    net.sample(6, IMAGES)
    assert Count.runs == 6 * 8


def test_layers_behind_the_output_do_not_run(tmp_path):
    net = make_net(
        tmp_path, small() + python_layer("Fail", "out").replace('top: "out"', 'top: "x"')
    )
    found = net.sample(3, IMAGES, output="hidden")
    net.set_draw(2)
    with pytest.raises(RuntimeError, match="this layer fails"):
        net.forward()
    assert found.shape == (3, 37, 16)
    with pytest.raises(RuntimeError, match="this layer fails"):
        net.sample(3, IMAGES, output="x")
    assert_same(net.sample(3, IMAGES, output="hidden"), found)


@pytest.mark.parametrize("output", ["data", "conv", "hidden"])
def test_inner_blobs(tmp_path, output):
    for name in ("bayesian", "dropout in place", "deterministic at first", "nothing random"):
        net = make_net(tmp_path, NETS[name])
        assert_same(net.sample(3, IMAGES, output=output), by_hand(net, 3, IMAGES, output=output))


@pytest.mark.parametrize("late", [False, True])
def test_several_inputs(tmp_path, late):
    """In any place of the prototxt, also behind the first random layer."""
    first, second = image_input("x"), image_input("y")
    layers = product("a", "x") + second if late else second + product("a", "x")
    net = make_net(
        tmp_path, first + layers + product("b", "y", kind="InnerProduct") + join("a", "b")
    )
    inputs = {"x": IMAGES, "y": 1 - IMAGES}
    assert_same(net.sample(3, inputs), by_hand(net, 3, inputs))


def data_by_hand(make, draws, images, output="out"):
    """As by_hand, for a net that reads the images; it starts anew for each draw."""
    result = []
    for draw in draws:
        net = make()
        rows = []
        while sum(map(len, rows)) < images:
            net.set_draw(draw)
            net.forward()
            rows.append(net.blobs[output].data.copy())
        result.append(np.concatenate(rows)[:images])
    return np.array(result)


# A whole number of batches, and not; once around the 100 images and further.
@pytest.mark.parametrize("images", [40, 33, 1, 150])
def test_images_and_labels_of_a_data_layer(tmp_path, digits, images):
    def make():
        # With an accuracy and a loss behind the output.
        return make_net(tmp_path, small_net(digits, BAYES, dropout()))

    found, kept = make().sample([4, 0, 1], images=images, output="out", keep=["label", "data"])
    assert_same(found, data_by_hand(make, [4, 0, 1], images))
    assert kept.keys() == {"label", "data"}
    for name, values in kept.items():
        assert np.array_equal(values, data_by_hand(make, [0], images, name)[0])
    _, kept = make().sample(1, images=images, output="out", keep="label")
    assert kept.keys() == {"label"}


def test_data_layer_goes_on_where_it_is(tmp_path, digits):
    def net():
        return make_net(tmp_path, small_net(digits, BAYES))

    once, parts = net(), net()
    whole = once.sample(2, images=80, output="out")
    halves = [parts.sample(2, images=40, output="out") for _ in range(2)]
    assert_same(np.concatenate(halves, axis=1), whole)


def test_data_layer_behind_a_random_one(tmp_path, digits):
    """Its images belong to those of the first data layer, in each draw."""
    text = small_net(digits, BAYES)
    start, end = text.index("layer {"), text.index('layer {\n          name: "conv"')
    again = text[start:end].replace('name: "data"', 'name: "again"')
    again = again.replace('top: "data" top: "label"', 'top: "data2" top: "label2"')

    def make():
        net = text[:end] + product("a", "data") + again + join("a", "b2", top="joined")
        net = net.replace(
            'layer { name: "join"',
            product("b2", "data2", kind="InnerProduct") + 'layer { name: "join"',
        )
        return make_net(tmp_path, net)

    found, kept = make().sample(3, images=33, output="joined", keep=["label", "label2"])
    assert_same(found, data_by_hand(make, range(3), 33, "joined"))
    assert np.array_equal(kept["label"], kept["label2"])


def test_out_can_be_a_file(tmp_path):
    net = make_net(tmp_path, NETS["bayesian"])
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(3, 37, 4))
    assert net.sample(3, IMAGES, out=out) is out
    out.flush()
    written = np.fromfile(tmp_path / "out", np.float32).reshape(3, 37, 4)
    assert_same(written, by_hand(net, 3, IMAGES))


def test_input_need_not_be_contiguous_floats(tmp_path):
    net = make_net(tmp_path, NETS["bayesian"])
    images = np.round(255 * IMAGES).astype(np.uint8)
    expected = by_hand(net, 2, images.astype(np.float32)[::-1])
    assert_same(net.sample(2, images[::-1]), expected)
    assert_same(net.sample(2, list(images[::-1])), expected)


def test_a_net_that_was_reshaped(tmp_path):
    net = make_net(tmp_path, NETS["bayesian"])
    expected = by_hand(net, 3, IMAGES)
    net.blobs["data"].reshape(8, 1, 12, 12)
    assert_same(net.sample(3, IMAGES), expected)


def test_nets_of_the_training_phase(tmp_path):
    """A mask of dropout is then one for each place in a batch."""
    net = make_net(tmp_path, small(None, dropout()), phase=0)
    assert_same(net.sample(4, IMAGES), by_hand(net, 4, IMAGES))


@pytest.mark.parametrize("way", ["draws_per_batch: 3", "local_reparametrization: true"])
def test_noise_of_a_training_batch(tmp_path, way):
    """The images of a batch have their own noise then, and a batch is left whole."""
    text = small().replace(BAYES, f"{BAYES} {way}")
    if way.startswith("local"):  # not for the convolution
        text = text.replace(f"{BAYES} {way}", BAYES, 1)
    net = make_net(tmp_path, text, phase=0)
    assert_same(net.sample(4, IMAGES), by_hand(net, 4, IMAGES))
    net = make_net(tmp_path, text, phase=1)
    assert_same(net.sample(4, IMAGES), make_net(tmp_path, small(), phase=1).sample(4, IMAGES))


def test_statistics_of_the_training_phase_stay(tmp_path):
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "hidden" top: "hidden" }'
    net = make_net(tmp_path, small(more=norm), phase=0)
    before = blobs(net)
    net.sample(4, IMAGES)
    assert_same_bits(blobs(net), before)
    by_hand(net, 1, IMAGES)
    assert not np.array_equal(net.params["norm"][0].data, before["norm"][0])


THREADS = """
import caffe, numpy as np
caffe.set_random_seed(1)
net = caffe.Net(NET, caffe.TEST)
images = np.random.default_rng(1).random((300, 1, 64, 64)).astype(np.float32)
for draws in (1, 7):
    np.save(f"{OUT}.{draws}.npy", net.sample(draws, images))
"""


def test_same_bits_for_any_number_of_threads(tmp_path):
    (tmp_path / "net.prototxt").write_text(large())
    for threads in ("1", "2", "4"):
        out = str(tmp_path / threads)
        places = f"NET, OUT = {str(tmp_path / 'net.prototxt')!r}, {out!r}\n"
        python(places + THREADS, OMP_NUM_THREADS=threads)
    for draws in (1, 7):
        results = {
            threads: np.load(tmp_path / f"{threads}.{draws}.npy") for threads in ("1", "2", "4")
        }
        assert_same(results["1"], results["2"])
        assert_same(results["1"], results["4"])
        assert np.ptp(results["1"]) > 0


def test_a_function_may_give_the_images_in_parts(tmp_path):
    """Never more than 64 MB at once, in order, each image once: here 2,048 images a part."""
    count = 2048 + 5
    images = np.random.default_rng(2).random((count, 1, 64, 128)).astype(np.float32)
    net = make_net(
        tmp_path,
        f"""layer {{ name: "data" type: "Input" top: "data"
                     input_param {{ shape {{ dim: {BATCH} dim: 1 dim: 64 dim: 128 }} }} }}
            layer {{ name: "pool" type: "Pooling" bottom: "data" top: "pool"
                     pooling_param {{ pool: AVE kernel_size: 64 stride: 64 }} }}
            layer {{ name: "out" type: "BayesInnerProduct" bottom: "pool" top: "out"
                     inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }}
                     bayes_param {{ {BAYES} }} }}""",
    )
    asked = []

    def read(first, size):
        asked.append((first, size))
        return images[first : first + size].astype(float)

    found = net.sample(3, read, images=count)
    assert asked == [(0, 2045), (2045, 8)]  # whole batches
    assert_same(found, net.sample(3, images))
    assert_same(found[:, 2040:2050], by_hand(net, 3, images[2040:2050]))
    with pytest.raises(ValueError, match="images: say how many"):
        net.sample(3, read)
    with pytest.raises(ValueError, match="inputs: 'data' gave 1 items, not 2045"):
        net.sample(3, lambda first, size: images[:1], images=count)
    with pytest.raises(LookupError, match="no more"):
        net.sample(3, lambda first, size: (_ for _ in ()).throw(LookupError("no more")), images=5)


@pytest.mark.parametrize("name", ["bayesian", "nothing random", "Python layer"])
def test_progress(tmp_path, name):
    net = make_net(tmp_path, NETS[name])
    for draws in (1, 500):
        shares = []
        net.sample(draws, IMAGES, progress=shares.append)
        assert shares == sorted(shares)
        assert shares[0] > 0 and shares[-1] == 1
        # A thread that speaks Python is the only one here, and tells of each batch and the end.
        assert name != "Python layer" or len(shares) == 8 * draws + 1


def test_exception_of_progress_arrives(tmp_path):
    net = make_net(tmp_path, NETS["bayesian"])
    expected = by_hand(net, 30, IMAGES)
    before = blobs(net)

    def fail(share):
        raise LookupError(f"at {share}")

    with pytest.raises(LookupError, match="at [01]"):
        net.sample(30, IMAGES, progress=fail)
    assert_same_bits(blobs(net), before)
    assert_same(net.sample(30, IMAGES), expected)


def test_control_c(tmp_path):
    net = make_net(tmp_path, large())
    image = np.ones((1, 1, 64, 64), np.float32)
    out = np.zeros((400_000, 1, 4), np.float32)
    # From another process: this one is busy.
    killer = subprocess.Popen(["sh", "-c", f"sleep 1; kill -INT {os.getpid()}"])
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            net.sample(len(out), image, out=out)
    finally:
        signal.signal(signal.SIGINT, previous)
        killer.wait()
    # Half a minute of work, of which some was done.
    assert out[0].any() and not out[-1].any()
    assert_same(net.sample(2, image), by_hand(net, 2, image))


def test_parameters_and_draws_of_the_net_stay(tmp_path):
    net = make_net(tmp_path, NETS["dropout in place"])
    net.blobs["data"].data[...] = IMAGES[:BATCH]
    net.forward()
    before = blobs(net)
    second = make_net(tmp_path, NETS["dropout in place"])
    second.blobs["data"].data[...] = IMAGES[:BATCH]
    second.forward()
    net.sample(3, IMAGES)
    assert_same_bits(blobs(net), before)
    # The next draw is the one that it would have been.
    net.blobs["data"].data[...] = IMAGES[:BATCH]
    assert np.array_equal(net.forward()["out"], second.forward()["out"])


def test_random_stream_stays(tmp_path):
    noise = """layer { name: "noise" type: "DummyData" top: "noise" dummy_data_param {
                 shape { dim: 50 } data_filler { type: "gaussian" std: 1 } } }"""

    def numbers(sample):
        sampled = make_net(tmp_path, NETS["other layers"])
        net = make_net(tmp_path, noise)
        if sample:
            sampled.sample(3, IMAGES)
        return net.forward()["noise"].copy()

    assert np.array_equal(numbers(False), numbers(True))


def test_training_goes_on_as_if_nothing_was_sampled(tmp_path, digits):
    text = small_net(digits, BAYES, dropout())
    (tmp_path / "test.prototxt").write_text(text)
    test = {
        "test_net": f'"{tmp_path / "test.prototxt"}"',
        "test_iter": 1,
        "test_interval": 1000,
        "test_initialization": "false",
    }
    trained = []
    for sample in (False, True):
        solver = pycaffe.get_solver(str(write_solver(tmp_path, text, 20, **test)))
        solver.step(5)
        if sample:
            solver.test_nets[0].sample(4, images=50, output="out")
        solver.step(5)
        trained.append(blobs(solver.net))
    assert_same_bits(*trained)


def test_sample_of_a_test_net_has_the_weights_of_the_training(tmp_path, digits):
    text = small_net(digits, BAYES)
    (tmp_path / "test.prototxt").write_text(text)
    solver = pycaffe.get_solver(
        str(
            write_solver(
                tmp_path,
                text,
                20,
                test_net=f'"{tmp_path / "test.prototxt"}"',
                test_iter=1,
                test_interval=1000,
            )
        )
    )
    before = solver.test_nets[0].sample(2, images=100, output="out")
    solver.step(5)
    after = solver.test_nets[0].sample(2, images=100, output="out")
    assert not np.allclose(before, after)


# Peaks of anonymous memory, in MiB, while sampling; what is mapped from a file does not count.
MEMORY = """
import caffe, numpy as np, pathlib
def anonymous():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
caffe.set_random_seed(1)
net = caffe.Net(NET, caffe.TEST)
inputs = np.memmap(INPUTS, np.float32, "w+", shape=(COUNT, *net.blobs["data"].data.shape[1:]))
out = np.memmap(OUT, np.float32, "w+", shape=(DRAWS, COUNT, *net.blobs["out"].data.shape[1:]))
before = anonymous()
peak = []
net.sample(DRAWS, inputs, out=out, progress=lambda share: peak.append(anonymous()))
print(max(peak) - before)
"""


def memory(tmp_path, text, count, draws):
    (tmp_path / "net.prototxt").write_text(text)
    places = {name: str(tmp_path / name.lower()) for name in ("INPUTS", "OUT")}
    places |= {"NET": str(tmp_path / "net.prototxt"), "COUNT": count, "DRAWS": draws}
    assignments = "".join(f"{name} = {value!r}\n" for name, value in places.items())
    # Each thread has a copy of the net, so the limits are for a definite number of threads.
    return float(python(assignments + MEMORY, OMP_NUM_THREADS="2"))


def test_memory_does_not_grow_with_images_or_draws(tmp_path):
    # 12,000 images of 16 KiB are 188 MiB, of which 64 MiB are collected at a time.
    assert memory(tmp_path, large(batch=100), count=12_000, draws=2) < 64 + 40
    # 100 draws of 20,000 images are 30 MiB of output.
    assert memory(tmp_path, small(batch=100), count=20_000, draws=100) < 40


def test_memory_of_large_images(tmp_path):
    """A net takes one image at a time because more do not fit; its copies must not take 32."""
    # 16 MiB for an image and what the layer makes of it: two copies of 32 would be a GiB.
    text = """
        layer { name: "data" type: "Input" top: "data"
                input_param { shape { dim: 1 dim: 1 dim: 1024 dim: 1024 } } }
        layer { name: "conv" type: "BayesConvolution" bottom: "data" top: "conv"
                convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } }
                bayes_param { kl_weight: 0 } }
        layer { name: "out" type: "Pooling" bottom: "conv" top: "out"
                pooling_param { pool: AVE global_pooling: true } }"""
    assert memory(tmp_path, text, count=40, draws=2) < 64 + 64 + 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "draws: at least one is needed"),
        ({"draws": -3}, "draws: at least one is needed"),
        ({"draws": []}, "draws: at least one is needed"),
        ({"draws": [1, -1]}, "draws: -1 is not an index, 0 or greater"),
        ({"draws": [0.5]}, "draws: 0.5 is not an index, 0 or greater"),
        ({"output": "nothing"}, "the net has no blob 'nothing'; it has data, conv, hidden, kl"),
        ({"output": "kl"}, "the blob 'kl' is one number, not one item for each image"),
        ({"keep": "nothing"}, "the net has no blob 'nothing'"),
        ({"keep": ["data", "kl"]}, "the blob 'kl' is one number"),
        ({"keep": "out"}, "keep: the blob 'out' depends on the draw; sample it as output"),
        ({"output": None}, "output: name one blob, such as kl, out"),
        ({"inputs": None}, "inputs: the net wants data"),
        ({"inputs": {"other": IMAGES}}, r"inputs: \['other'\], but the net has \['data'\]"),
        (
            {"inputs": IMAGES[..., 1:]},
            r"'data' has items of shape \(1, 12, 11\), but the net takes \(1, 12, 12\)",
        ),
        ({"inputs": 1.5}, r"'data' has items of shape \(\)"),
        ({"images": 36}, r"inputs and images must be of one number, not \[36, 37\]"),
        ({"inputs": IMAGES[:0]}, "images: 0, but must be 1 or more"),
        ({"out": np.empty((2, 36, 4), np.float32)}, r"out: is float32 \(2, 36, 4\), but must be"),
        ({"out": np.empty((2, 37, 4))}, "out: is float64"),
        (
            {"out": np.empty((37, 2, 4), np.float32).transpose(1, 0, 2)},
            r"must be contiguous float32 \(2, 37, 4\)",
        ),
    ],
)
def test_nonsense_is_refused(tmp_path, arguments, message):
    net = make_net(tmp_path, NETS["KL top"])
    good = {"draws": 2, "inputs": IMAGES, "output": "out"}
    with pytest.raises(ValueError, match=message):
        net.sample(**{**good, **arguments})
    assert_same(net.sample(**good), by_hand(net, 2, IMAGES))


def test_nonsense_about_inputs_is_refused(tmp_path, digits):
    two = make_net(
        tmp_path,
        image_input("x")
        + image_input("y")
        + product("a", "x")
        + product("b", "y")
        + join("a", "b"),
    )
    with pytest.raises(ValueError, match="one array, but the net has 2 inputs; give them by name"):
        two.sample(2, IMAGES)
    with pytest.raises(ValueError, match=r"inputs: \['x'\], but the net has \['x', 'y'\]"):
        two.sample(2, {"x": IMAGES})
    with pytest.raises(ValueError, match=r"must be of one number, not \[36, 37\]"):
        two.sample(2, {"x": IMAGES, "y": IMAGES[1:]})
    data = make_net(tmp_path, small_net(digits, BAYES))
    with pytest.raises(ValueError, match="images: say how many"):
        data.sample(2, output="out")
    with pytest.raises(ValueError, match="images: 0, but must be 1 or more"):
        data.sample(2, images=0, output="out")
    with pytest.raises(ValueError, match="inputs: one array, but the net has 0 inputs"):
        data.sample(2, IMAGES, output="out")


def test_a_read_only_array_is_refused(tmp_path):
    net = make_net(tmp_path, NETS["bayesian"])
    out = np.zeros((2, 37, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match="read-only|not writable"):
        net.sample(2, IMAGES, out=out)
    assert not out.any()


def test_blobs_that_have_not_one_item_for_each_image_are_refused(tmp_path):
    per_class = f"""layer {{ name: "flat" type: "Reshape" bottom: "out" top: "flat"
                             reshape_param {{ shape {{ dim: {4 * BATCH} }} }} }}
                    layer {{ name: "flat data" type: "Reshape" bottom: "data" top: "flat data"
                             reshape_param {{ shape {{ dim: {144 * BATCH} }} }} }}"""
    net = make_net(tmp_path, small() + per_class)
    with pytest.raises(ValueError, match="'flat' has 20 items, not one for each of the 5 images"):
        net.sample(2, IMAGES, output="flat")
    with pytest.raises(ValueError, match="'flat data' has 720 items, not one for each of the 5"):
        net.sample(2, IMAGES, output="out", keep="flat data")


def test_inputs_of_other_batches_are_refused(tmp_path):
    text = image_input("x") + image_input("y", batch=2) + product("a", "x") + product("b", "y")
    net = make_net(tmp_path, text)
    with pytest.raises(ValueError, match="'y' has 2 items, not one for each of the 5 images"):
        net.sample(2, {"x": IMAGES, "y": IMAGES}, output="a")


def test_a_blob_that_is_overwritten_at_random_cannot_be_kept(tmp_path):
    net = make_net(tmp_path, NETS["dropout alone"])
    with pytest.raises(ValueError, match="keep: the blob 'hidden' depends on the draw"):
        net.sample(2, IMAGES, keep="hidden")


def test_softmax_over_the_batch(tmp_path):
    """It looks at all images of a batch; they must be those that forward has."""
    softmax = """layer { name: "soft" type: "Softmax" bottom: "hidden" top: "hidden"
                         softmax_param { axis: 0 } }"""
    net = make_net(tmp_path, small(more=softmax))
    assert_same(net.sample(3, IMAGES[:35]), by_hand(net, 3, IMAGES[:35]))


@pytest.mark.parametrize("axis", [0, 1])
def test_flatten_with_and_without_the_batch(tmp_path, axis):
    flat = f"""layer {{ name: "flat" type: "Flatten" bottom: "hidden" top: "flat"
                        flatten_param {{ axis: {axis} end_axis: {axis} }} }}"""
    net = make_net(tmp_path, small(more=flat))
    found = net.sample(3, IMAGES, output="flat")
    assert_same(found, by_hand(net, 3, IMAGES, "flat"))
