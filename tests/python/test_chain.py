"""From a stock net to nets for other programs, by the commands that a user types.

Upstream's reference nets and a ResNet: convert, one training step, two draws of two images, export.
OpenCV and onnxruntime compute what `sample` did, for the net of training and for that of
deployment.
"""

from pathlib import Path

import numpy as np
import pytest
from bayescaffe import Model, data, load_draws
from bayescaffe.cli import main
from bayescaffe.net.layer_kinds import deltas, is_bayesian, means
from bayescaffe.net.messages import parse_message, read_message, read_weights
from export_nets import (
    UPSTREAM,
    assert_close,
    onnx_session,
    randomize,
    resnet,
    run_onnxruntime,
    run_opencv,
)

pytestmark = pytest.mark.engine
pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

# The solver and the net for deployment, the size of the images, and what is cut out of them: as
# little as the layers of the net allow.
NETS = {
    "cifar10_quick": ("examples/cifar10/cifar10_quick_solver", "cifar10_quick", 32, 0),
    "cifar10_full": ("examples/cifar10/cifar10_full_solver", "cifar10_full", 32, 0),
    "alexnet": ("models/bvlc_alexnet/solver", "deploy", 70, 67),
    "caffenet": ("models/bvlc_reference_caffenet/solver", "deploy", 70, 67),
    "googlenet": ("models/bvlc_googlenet/solver", "deploy", 226, 224),
    "resnet": (None, "deploy", 36, 33),
}
CLASSES = [f"class {k}" for k in range(7)]
SOLVER = 'net: "train.prototxt" base_lr: 10 lr_policy: "fixed"'
ENDS = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
        transform_param { mirror: true mean_value: 120 scale: 0.02 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
        transform_param { mean_value: 120 scale: 0.02 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" }
"""


def reference(name):
    """The solver, the net for training and that for deployment: upstream's, or a ResNet."""
    solver, deploy, *_ = NETS[name]
    if solver is None:
        deploy = parse_message(resnet(), "NetParameter")
        *source, loss = parse_message(ENDS, "NetParameter").layer
        train = type(deploy)(layer=[*source, *deploy.layer[1:-1], loss])
        return parse_message(SOLVER, "SolverParameter"), train, deploy
    path = UPSTREAM / f"{solver}.prototxt"
    solver = read_message(path, "SolverParameter")
    return (
        solver,
        read_message(path.with_name(Path(solver.net).name), "NetParameter"),
        read_message(path.with_name(f"{deploy}.prototxt"), "NetParameter"),
    )


def write_stock(name, images) -> None:
    """Write the net into the current directory, small where its structure allows it."""
    _, _, size, crop = NETS[name]
    solver, train, deploy = reference(name)
    for net in (train, deploy):
        for layer in net.layer:
            if layer.type == "Data":
                layer.transform_param.crop_size = crop
                layer.data_param.batch_size = 2
            elif layer.type == "Input":
                layer.input_param.shape[0].dim[:] = [2, 3, crop or size, crop or size]
            elif layer.inner_product_param.num_output >= 1000:
                layer.inner_product_param.num_output = 16
            elif layer.convolution_param.num_output > 64:
                layer.convolution_param.num_output //= 4
    for net in (train, deploy):
        for layer in classifiers(net):
            layer.inner_product_param.num_output = len(CLASSES)
    solver.max_iter = solver.random_seed = 1
    solver.base_lr /= 1000  # the images are noise
    Path("solver.prototxt").write_text(str(solver))
    Path(Path(solver.net).name).write_text(str(train))
    Path("deploy.prototxt").write_text(str(deploy))
    write_weights((images - np.float32(128)) * train.layer[0].transform_param.scale)


def classifiers(net) -> list:
    """The inner products that give the scores of the classes."""
    scores = {layer.bottom[0] for layer in net.layer if layer.type.startswith("Softmax")}
    return [
        layer
        for layer in net.layer
        if layer.type == "InnerProduct" and scores.intersection(layer.top)
    ]


def write_weights(images) -> None:
    """Random weights, with which no class is sure of itself."""
    net = pycaffe.Net("deploy.prototxt", pycaffe.TEST)
    randomize(net)
    (last,) = classifiers(read_message("deploy.prototxt", "NetParameter"))
    height, width = net.blobs["data"].data.shape[2:]
    net.forward(data=images[..., :height, :width])
    net.params[last.name][0].data[...] *= 2 / net.blobs[last.top[0]].data.std()
    net.save("stock.caffemodel")


def write_images(size) -> np.ndarray:
    """An image of each class to train with, and two to test with, which are returned."""
    random = np.random.default_rng(7)
    images = random.integers(0, 256, (len(CLASSES) + 2, size, size, 3), np.uint8)
    labels = np.arange(len(images)) % len(CLASSES)
    test = images[-2:], labels[-2:]
    data.from_arrays(
        *(images[:-2], labels[:-2], "data"),
        **{"val": 0, "test": test, "channels": "bgr", "class_names": CLASSES},
    )
    return images[-2:].transpose(0, 3, 1, 2)


def run(command) -> None:
    assert main([*command.split(), "--quiet"]) == 0


def check_trained(name) -> str:
    """The one step has changed all means, and taus. Returns the path of the weights."""
    (trained,) = map(str, Path("bayes").glob("*_iter_1.caffemodel"))
    before = {layer.name: layer for layer in read_weights("bayes/stock.caffemodel")}
    layers = [layer for layer in read_weights(trained) if is_bayesian(layer)]
    kinds = ("Convolution", "InnerProduct", "Scale")
    assert [layer.name for layer in layers] == [
        layer.name for layer in reference(name)[1].layer if layer.type in kinds
    ]
    assert all(np.isfinite(blob).all() for layer in layers for blob in layer.blobs)
    # Others started from fillers.
    pairs = [(layer, before[layer.name]) for layer in layers if layer.name in before]
    assert len(pairs) == len(layers) - 6 * (name == "googlenet")
    assert all(np.abs(means(new)[0] - means(old)[0]).max() > 0 for new, old in pairs)
    # All taus had the same start.
    assert len({np.asarray(deltas(layer)[0]).item() for layer in layers}) > 1
    return trained


@pytest.mark.parametrize("name", NETS)
def test_a_stock_net_becomes_bayesian_and_travels(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = write_images(NETS[name][2])
    write_stock(name, images)
    run("convert solver.prototxt --weights stock.caffemodel --data data --cpu --out bayes")
    run("convert deploy.prototxt --out bayes")
    run("train bayes/solver.prototxt")
    trained = check_trained(name)

    run("sample bayes/solver.prototxt --passes 2 --out draws.npz")
    draws = load_draws("draws.npz").probabilities
    assert draws.shape == (2, 2, len(CLASSES)) and draws.max() < 0.99
    assert np.abs(draws[0] - draws[1]).max() > 0.01
    net = read_message("bayes/solver.prototxt", "SolverParameter").net
    inputs = Model(net, trained).transform(images)
    np.save("inputs.npy", inputs)
    run(f"sample bayes/deploy.prototxt {trained} --data inputs.npy --passes 2 --out x.npz")
    assert_close(load_draws("x.npz").probabilities, draws)

    for net in ("bayes/solver.prototxt", f"bayes/deploy.prototxt {trained}"):
        for to in ("caffe", "onnx"):
            run(f"export {net} --draws 0-1 --to {to} --out exported")
        for draw in (0, 1):
            assert_close(run_opencv(f"exported/draw-{draw}", inputs), draws[draw])
            assert_close(run_onnxruntime(f"exported/draw-{draw}.onnx", inputs), draws[draw])
    run("export bayes/solver.prototxt --stochastic --to onnx --out exported")
    session = onnx_session("exported/stochastic.onnx")
    first, second = (session.run(None, {"data": inputs})[0] for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
