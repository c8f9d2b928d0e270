"""Bayesian nets from the outside: pycaffe and `caffe train`."""

import re

import noise_reference
import numpy as np
import pytest
from conftest import (
    assert_same,
    assert_same_bits,
    blobs,
    caffe,
    input_net,
    make_net,
    small_net,
    write_solver,
)

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from caffe.proto import caffe_pb2  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"
DROPOUT = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                     dropout_param { dropout_ratio: 0.3 sample_weights_test: true } }"""
OTHER_LAYERS = f"""
    layer {{ name: "scale" type: "BayesScale" bottom: "hidden" top: "hidden"
             scale_param {{ bias_term: true }} bayes_param {{ {BAYES} }} }}
    layer {{ name: "embed" type: "BayesEmbed" bottom: "label" top: "embedded"
             embed_param {{ input_dim: 4 num_output: 16 weight_filler {{ type: "xavier" }} }}
             bayes_param {{ {BAYES} }} }}
    layer {{ name: "sum" type: "Eltwise" bottom: "hidden" bottom: "embedded" top: "hidden" }}"""
LAYERS = ("conv", "hidden", "out")


def train(tmp_path, net, iterations, **options):
    solver = pycaffe.get_solver(str(write_solver(tmp_path, net, iterations, **options)))
    solver.step(iterations)
    return solver


def test_pycaffe_sees_the_six_blobs(tmp_path, digits):
    net = make_net(tmp_path, small_net(digits, BAYES))
    shapes = [blob.data.shape for blob in net.params["conv"]]
    assert shapes == [(4, 1, 3, 3), (4,), (1,), (1,), (4, 1, 3, 3), (4,)]
    m, _, delta, delta_b, epsilon, _ = (blob.data for blob in net.params["hidden"])
    assert np.logaddexp(0, delta) == pytest.approx(0.4)
    assert np.logaddexp(0, delta_b) == pytest.approx(0.1)
    net.forward()
    assert m.std() > 0 and abs(epsilon.std() - 1) < 0.2


def test_noise_is_the_reference_to_the_last_bit(tmp_path, digits):
    net = make_net(tmp_path, small_net(digits, BAYES), seed=77)
    for draw in (0, 5, 2**32 + 1):
        net.set_draw(draw)
        net.forward()
        for layer in LAYERS:
            for blob in (0, 1):
                epsilon = net.params[layer][4 + blob].data.ravel()
                key = noise_reference.key(77, layer, blob)
                assert np.array_equal(epsilon, noise_reference.normal(key, draw, epsilon.size))


def test_reference_noise_is_normal():
    numbers = noise_reference.normal(noise_reference.key(1, "x", 0), 0, 100_000).astype(float)
    assert abs(numbers.mean()) < 5 / np.sqrt(100_000)
    assert abs(numbers.var() - 1) < 5 * np.sqrt(2 / 100_000)


def test_each_forward_takes_the_next_draw_and_a_named_draw_repeats(tmp_path, digits):
    net = make_net(tmp_path, input_net(small_net(digits, BAYES, DROPOUT), batch=3))
    net.blobs["data"].data[...] = np.random.default_rng(0).random((3, 1, 12, 12))

    def forward():
        return net.forward()["out"].copy()

    first, second = forward(), forward()
    assert not np.array_equal(first, second)
    net.set_draw(0)
    assert np.array_equal(forward(), first)
    assert np.array_equal(forward(), second)


def test_a_draw_is_one_network_for_any_batch(tmp_path, digits):
    text = small_net(digits, BAYES, DROPOUT)
    images = np.random.default_rng(0).random((6, 1, 12, 12)).astype(np.float32)
    outputs = []
    for batch in (1, 2, 6):
        net = make_net(tmp_path, input_net(text, batch))
        rows = []
        for start in range(0, 6, batch):
            net.set_draw(9)
            net.blobs["data"].data[...] = images[start : start + batch]
            rows.append(net.forward()["out"].copy())
        outputs.append(np.concatenate(rows))
    assert_same(outputs[1], outputs[0])
    assert_same(outputs[2], outputs[0])


def test_set_draw_refuses_what_is_no_index(tmp_path, digits):
    net = make_net(tmp_path, small_net(digits, BAYES))
    for bad in (-1, 2**64, "three", 1.5):
        with pytest.raises(Exception, match="draw|uint64|unsigned|type|negative|overflow"):
            net.set_draw(bad)


def test_without_sampling_it_is_the_stock_net(tmp_path, digits):
    stock = make_net(tmp_path, input_net(small_net(digits, None), batch=5))
    stock.save(str(tmp_path / "stock.caffemodel"))
    text = input_net(small_net(digits, "kl_weight: 0 sample: NEVER"), batch=5)
    net = make_net(tmp_path, text, weights=tmp_path / "stock.caffemodel")
    images = np.random.default_rng(0).random((5, 1, 12, 12))
    for each in (stock, net):
        each.blobs["data"].data[...] = images
    assert np.array_equal(net.forward()["out"], stock.forward()["out"])


@pytest.mark.parametrize("bayes", [BAYES, BAYES + " sample: NEVER", None])
def test_training_lowers_the_loss(tmp_path, digits, bayes):
    solver = pycaffe.get_solver(str(write_solver(tmp_path, small_net(digits, bayes), 200)))
    losses = []
    for _ in range(200):
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    assert np.isfinite(losses).all()
    # Four classes: ln 4 = 1.39 is guessing.
    assert np.mean(losses[:5]) > 1
    assert np.mean(losses[-20:]) < 0.3


def test_seed_fixes_a_training_to_the_last_bit(tmp_path, digits):
    net = small_net(digits, BAYES, DROPOUT)
    first = blobs(train(tmp_path, net, 20).net)
    assert_same_bits(first, blobs(train(tmp_path, net, 20).net))
    other = blobs(train(tmp_path, net, 20, random_seed=2).net)
    assert not np.array_equal(first["out"][0], other["out"][0])


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        ({}, ""),
        ({"iter_size": 2}, ""),
        ({"snapshot_format": "HDF5"}, ""),
        ({}, " draws_per_batch: 4"),
        ({}, " local_reparametrization: true"),
        ({"iter_size": 2}, " kl_ramp: 50"),
    ],
)
def test_resumed_training_is_the_uninterrupted_one(tmp_path, digits, options, noise):
    # 20 iterations of 20 images of 330: the interruption is in the middle of an epoch.
    net = small_net(digits, BAYES + noise, DROPOUT + OTHER_LAYERS)
    if "local" in noise:
        net = net.replace(noise, "", 1)  # not for the convolution, which comes first
    whole = train(tmp_path, net, 31, name="whole", **options)
    solver = write_solver(tmp_path, net, 31, name="part", snapshot=20, **options)
    half = pycaffe.get_solver(str(solver))
    half.step(20)
    resumed = pycaffe.get_solver(str(solver))
    suffix = ".h5" if options.get("snapshot_format") == "HDF5" else ""
    resumed.restore(str(tmp_path / f"part_iter_20.solverstate{suffix}"))
    resumed.step(11)
    assert_same_bits(blobs(resumed.net), blobs(whole.net))


def test_resume_on_the_command_line(tmp_path, digits):
    net = small_net(digits, BAYES)
    solver = write_solver(tmp_path, net, 30, snapshot=10)
    assert caffe("train", "-solver", solver).returncode == 0
    whole = (tmp_path / "run_iter_30.caffemodel").read_bytes()
    (tmp_path / "run_iter_30.caffemodel").unlink()
    done = caffe("train", "-solver", solver, "-snapshot", tmp_path / "run_iter_10.solverstate")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "run_iter_30.caffemodel").read_bytes() == whole


def test_weights_of_a_stock_net_start_a_bayesian_one_and_back(tmp_path, digits):
    stock = write_solver(tmp_path, small_net(digits, None), 40, name="stock")
    assert caffe("train", "-solver", stock).returncode == 0
    trained = tmp_path / "stock_iter_40.caffemodel"
    # A learning rate of nearly 0 leaves what was loaded.
    bayes = write_solver(tmp_path, small_net(digits, BAYES), 1, name="bayes", base_lr=1e-30)
    done = caffe("train", "-solver", bayes, "-weights", trained)
    assert done.returncode == 0, done.stdout

    def read(path):
        net = caffe_pb2.NetParameter()
        net.ParseFromString(path.read_bytes())
        return {
            layer.name: [np.array(blob.data, np.float32) for blob in layer.blobs]
            for layer in net.layer
            if layer.blobs
        }

    stock_blobs, bayes_blobs = read(trained), read(tmp_path / "bayes_iter_1.caffemodel")
    for layer in LAYERS:
        assert [len(stock_blobs[layer]), len(bayes_blobs[layer])] == [2, 6]
        for i in (0, 1):
            assert np.array_equal(stock_blobs[layer][i], bayes_blobs[layer][i])
        assert np.logaddexp(0, bayes_blobs[layer][2]) == pytest.approx(0.4)
    back = write_solver(tmp_path, small_net(digits, None), 1, name="back", base_lr=1e-30)
    done = caffe("train", "-solver", back, "-weights", tmp_path / "bayes_iter_1.caffemodel")
    assert done.returncode == 0, done.stdout
    for layer in LAYERS:
        assert np.array_equal(
            read(tmp_path / "back_iter_1.caffemodel")[layer][0], stock_blobs[layer][0]
        )


def test_named_kl_top_makes_the_log_show_the_whole_objective(tmp_path, digits):
    with_kl = small_net(digits, BAYES).replace(
        'top: "hidden" bayes_param',
        'top: "hidden" top: "kl" loss_weight: 0 loss_weight: 1 bayes_param',
    )
    done = caffe("train", "-solver", write_solver(tmp_path, with_kl, 1, display=1))
    assert done.returncode == 0, done.stdout
    total = float(re.search(r"Iteration 0 .*loss = (\S+)", done.stdout)[1])
    kl = float(re.search(r"kl = (\S+) \(\* 1", done.stdout)[1])
    loss = float(re.search(r" loss = (\S+) \(\* 1", done.stdout)[1])
    assert kl > 0.01
    assert total == pytest.approx(kl + loss, rel=1e-4)
    # The gradient has KL in it with the top or without.
    without = caffe("train", "-solver", write_solver(tmp_path, small_net(digits, BAYES), 1, "w"))
    assert "kl =" not in without.stdout
    a, b = (caffe_pb2.NetParameter() for _ in range(2))
    a.ParseFromString((tmp_path / "run_iter_1.caffemodel").read_bytes())
    b.ParseFromString((tmp_path / "w_iter_1.caffemodel").read_bytes())
    hidden = [next(x for x in net.layer if x.name == "hidden") for net in (a, b)]
    assert [list(x.data) for x in hidden[0].blobs] == [list(x.data) for x in hidden[1].blobs]


def test_tau_learns(tmp_path, digits):
    net = train(tmp_path, small_net(digits, BAYES), 100).net
    for layer in LAYERS:
        assert abs(np.logaddexp(0, net.params[layer][2].data[0]) - 0.4) > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("kl_weight: 1", "layer 'conv': bayes_param.dataset_size is missing"),
        ("dataset_size: 330 tau_init: -1", "layer 'conv': bayes_param.tau_init is -1, but must be"),
        ("dataset_size: 330 prior_std: 0", "layer 'conv': bayes_param.prior_std is 0, but must be"),
        ("dataset_size: 330 no_such_field: 1", 'no field named "no_such_field"'),
    ],
)
def test_nonsense_stops_caffe_train_with_its_name(tmp_path, digits, options, message):
    done = caffe("train", "-solver", write_solver(tmp_path, small_net(digits, options), 1))
    assert done.returncode != 0
    assert message in done.stdout
