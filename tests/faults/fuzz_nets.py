#!/usr/bin/env python3
"""Nets with extreme numbers: each must give caffe.Error or work, never a signal, a hang or more.

    fuzz_nets.py [--seed S] [--count N] [--memory MB] [--seconds T]   run N nets
    fuzz_nets.py --seed S --show K                                    print net K

Net K of a seed is always the same. It is one layer of a random type, sometimes with one behind it,
in which one to three numbers are extreme: those of its parameters, of its learning rates or of its
input's shape. A third of the layers are Bayesian. A child process sets the net up, runs it forward
and backward and takes draws of it. The child may use little memory, and what it cannot have must be
a caffe.Error too.

Exit codes: 0 all nets passed; 1 some did not, with their numbers, reasons and prototxts on stdout.
"""

import argparse
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from trial import address_space

# What each type of layer needs to work, before its numbers are changed: bottoms and parameters.
LAYERS = {
    "AbsVal": ("image", ""),
    "Accuracy": ("vector label", "accuracy_param { top_k: 1 }"),
    "ArgMax": ("image", "argmax_param { top_k: 1 }"),
    "BNLL": ("image", ""),
    "BatchNorm": ("image", "batch_norm_param { eps: 1e-5 }"),
    "BatchReindex": ("image label", ""),
    "BayesConvolution": ("image", "convolution_param { num_output: 4 kernel_size: 3 } BAYES"),
    "BayesDeconvolution": ("image", "convolution_param { num_output: 4 kernel_size: 3 } BAYES"),
    "BayesEmbed": ("label", "embed_param { num_output: 3 input_dim: 4 } BAYES"),
    "BayesInnerProduct": ("image", "inner_product_param { num_output: 3 } BAYES"),
    "BayesScale": ("image", "scale_param { axis: 1 } BAYES"),
    "Bias": ("image", "bias_param { axis: 1 }"),
    "Clip": ("image", "clip_param { min: -1 max: 1 }"),
    "Concat": ("image image2", "concat_param { axis: 1 }"),
    "ContrastiveLoss": ("vector vector2 label", "contrastive_loss_param { margin: 1 }"),
    "Convolution": ("image", "convolution_param { num_output: 4 kernel_size: 3 }"),
    "Crop": ("image image2", "crop_param { axis: 2 }"),
    "Data": ("", 'data_param { source: "LMDB" batch_size: 2 backend: LMDB }'),
    "Deconvolution": ("image", "convolution_param { num_output: 4 kernel_size: 3 }"),
    "Dropout": ("image", "dropout_param { dropout_ratio: 0.5 }"),
    "DummyData": ("", "dummy_data_param { shape { dim: 2 dim: 3 } }"),
    "ELU": ("image", "elu_param { alpha: 1 }"),
    "Eltwise": ("image image2", "eltwise_param { operation: SUM }"),
    "Embed": ("label", "embed_param { num_output: 3 input_dim: 4 }"),
    "EuclideanLoss": ("vector vector2", ""),
    "Exp": ("image", "exp_param { base: 2 }"),
    "Filter": ("image label", ""),
    "Flatten": ("image", "flatten_param { axis: 1 }"),
    "HingeLoss": ("vector label", ""),
    "Im2col": ("image", "convolution_param { kernel_size: 3 }"),
    "ImageData": ("", 'image_data_param { source: "LIST" batch_size: 2 }'),
    "InnerProduct": ("image", "inner_product_param { num_output: 3 }"),
    "Input": ("", "input_param { shape { dim: 2 dim: 3 } }"),
    "LRN": ("image", "lrn_param { local_size: 3 }"),
    "LRNMoments": ("image image2", "lrn_param { local_size: 3 }"),
    "LSTM": ("steps marks", 'recurrent_param { num_output: 3 weight_filler { type: "uniform" } }'),
    "Log": ("image", "log_param { base: 2 }"),
    "MVN": ("image", "mvn_param { eps: 1e-9 }"),
    "MemoryData": ("", "memory_data_param { batch_size: 2 channels: 1 height: 3 width: 3 }"),
    "MultinomialLogisticLoss": ("vector label", ""),
    "PReLU": ("image", "prelu_param { channel_shared: false }"),
    "Parameter": ("", "parameter_param { shape { dim: 2 dim: 3 } }"),
    "Pooling": ("image", "pooling_param { kernel_size: 3 stride: 2 }"),
    "PoolingMoments": ("image image2", "pooling_param { kernel_size: 3 stride: 2 }"),
    "Power": ("image", "power_param { power: 2 }"),
    "RNN": ("steps marks", 'recurrent_param { num_output: 3 weight_filler { type: "uniform" } }'),
    "ReLU": ("image", "relu_param { negative_slope: 0.1 }"),
    "ReLUMoments": ("image image2", "relu_param { negative_slope: 0.1 }"),
    "Reduction": ("image", "reduction_param { axis: 1 }"),
    "Reshape": ("image", "reshape_param { shape { dim: 0 dim: -1 } }"),
    "SPP": ("image", "spp_param { pyramid_height: 2 }"),
    "Scale": ("image", "scale_param { axis: 1 }"),
    "Sigmoid": ("image", ""),
    "SigmoidCrossEntropyLoss": ("vector vector2", ""),
    "Silence": ("image", ""),
    "Slice": ("image", "slice_param { axis: 1 slice_point: 1 }"),
    "Softmax": ("image", "softmax_param { axis: 1 }"),
    "SoftmaxWithLoss": ("vector label", "loss_param { normalization: VALID }"),
    "Split": ("image", ""),
    "Swish": ("image", "swish_param { beta: 1 }"),
    "TanH": ("image", ""),
    "Threshold": ("image", "threshold_param { threshold: 0 }"),
    "Tile": ("image", "tile_param { axis: 1 tiles: 2 }"),
}
# Python runs code of its own, HDF5 and InfogainLoss want files, which have tests of their own.
LEFT_OUT = {"Python", "HDF5Data", "HDF5Output", "InfogainLoss", "LSTMUnit", "WindowData"}
BAYES = "bayes_param { kl_weight: 0.1 dataset_size: 100 }"
SHAPES = {
    "image": [2, 4, 6, 6],
    "image2": [2, 4, 6, 6],
    "vector": [2, 4],
    "vector2": [2, 4],
    "label": [2],
    "steps": [3, 2, 4],
    "marks": [3, 2],
}
TOPS = {"Data": 2, "ImageData": 2, "MemoryData": 2, "Slice": 2, "Silence": 0, "Split": 2}
TOPS |= dict.fromkeys(("LRNMoments", "PoolingMoments", "ReLUMoments"), 2)

# What is written outside of an allocation ends the process when it is freed.
STRICT_MALLOC = {
    "LD_PRELOAD": "libc_malloc_debug.so.0",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "MALLOC_PERTURB_": "165",
}

INTEGERS = [0, 1, 2, 3, 4, 5, 6, 7, 9, 32, 33, 255, 4096, 65535, 65537, 10**6, 2**24, 2**28, 10**9]
UINT32 = [*INTEGERS, 2**30, 2**31 - 1, 2**31, 2**31 + 1, 3 * 10**9, 2**32 - 2, 2**32 - 1]
INT32 = [*INTEGERS, -1, -2, -3, -4, -5, -32, -33, -(10**6), 2**31 - 1, -(2**31) + 1, -(2**31)]
INT64 = [*INT32, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 1e-45, 1e-38, 1e-30, 1e-6, 1e6, 1e30, 3e38, -3e38]
FLOATS += [1e38, -1e38, float("inf"), -float("inf"), float("nan"), 1000.0, -1e-30]


# ---- nets --------------------------------------------------------------------------------------


def extreme(field, rng: random.Random):
    """A value for a field of protobuf's; None for what has no numbers."""
    if field.type in (field.TYPE_UINT32, field.TYPE_UINT64):
        return rng.choice(UINT32)
    if field.type == field.TYPE_INT32:
        return rng.choice(INT32)
    if field.type == field.TYPE_INT64:
        return rng.choice(INT64)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.name == "type":
        return rng.choice(
            ["constant", "gaussian", "uniform", "xavier", "msra", "bilinear", "positive_unitball"]
        )
    return None


def change(message, rng: random.Random) -> None:
    """Give one field of a message, or of a message in it, an extreme value."""
    field = rng.choice(message.DESCRIPTOR.fields)
    repeated = field.label == field.LABEL_REPEATED
    if field.message_type:
        if repeated:
            entries = getattr(message, field.name)
            change(rng.choice(entries) if entries else entries.add(), rng)
        else:
            getattr(message, field.name).SetInParent()
            change(getattr(message, field.name), rng)
        return
    value = extreme(field, rng)
    if value is None:
        return
    if not repeated:
        setattr(message, field.name, value)
        return
    values = getattr(message, field.name)
    if values and rng.random() < 0.6:
        values[rng.randrange(len(values))] = value
    else:
        values.extend([value] + [extreme(field, rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))])


def changed_layer(layer, net, rng: random.Random) -> None:
    """Give one to three numbers of a layer, or of its input's shape, extreme values."""
    own = [f.name for f in layer.DESCRIPTOR.fields if f.name.endswith("_param")]
    own = [name for name in own if layer.HasField(name)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        what = rng.random()
        if what < 0.12:
            change(rng.choice(layer.param) if layer.param else layer.param.add(), rng)
        elif what < 0.17:
            layer.loss_weight.append(rng.choice(FLOATS))
        elif what < 0.27 and net.layer:
            shape = rng.choice(net.layer).input_param.shape[0].dim
            shape[rng.randrange(len(shape))] = rng.choice(INT64)
        elif what < 0.32:
            layer.transform_param.SetInParent()
            change(layer.transform_param, rng)
        elif own:
            change(getattr(layer, rng.choice(own)), rng)


def make_net(seed: int, number: int, folder: Path):
    """Net `number` of a seed, as a NetParameter."""
    from caffe.proto import caffe_pb2
    from google.protobuf import text_format

    rng = random.Random(f"{seed} {number}")
    net = caffe_pb2.NetParameter(name=f"net {number} of seed {seed}")
    net.force_backward = rng.random() < 0.7
    net.state.phase = rng.choice((caffe_pb2.TRAIN, caffe_pb2.TEST))
    bayes = [kind for kind in LAYERS if kind.startswith("Bayes")]
    kind = rng.choice(bayes if rng.random() < 0.3 else list(LAYERS))
    bottoms, text = LAYERS[kind]
    for bottom in bottoms.split():
        layer = net.layer.add(name=bottom, type="Input", top=[bottom])
        layer.input_param.shape.add().dim.extend(SHAPES[bottom])
    text = text.replace("BAYES", BAYES).replace('LMDB"', f'{folder}/lmdb"')
    layer = text_format.Parse(
        text.replace("LIST", f"{folder}/list.txt"), caffe_pb2.LayerParameter()
    )
    layer.name, layer.type = "layer", kind
    layer.bottom.extend(bottoms.split())
    layer.top.extend(f"top{i}" for i in range(TOPS.get(kind, 1)))
    changed_layer(layer, net, rng)
    net.layer.append(layer)
    if layer.top and rng.random() < 0.25:
        behind = rng.choice(("InnerProduct", "Pooling", "Softmax", "BayesInnerProduct", "ReLU"))
        more = text_format.Parse(
            LAYERS[behind][1].replace("BAYES", BAYES), caffe_pb2.LayerParameter()
        )
        more.name, more.type = "behind", behind
        more.bottom.append(layer.top[0])
        more.top.append("behind")
        net.layer.append(more)
    return net


def write_data(folder: Path) -> None:
    """An LMDB of four images, and a list of one picture."""
    import lmdb
    from caffe.proto import caffe_pb2

    with lmdb.open(str(folder / "lmdb"), map_size=1 << 20) as env, env.begin(write=True) as txn:
        for i in range(4):
            datum = caffe_pb2.Datum(
                channels=1, height=3, width=3, label=i % 2, data=bytes(range(9))
            )
            txn.put(f"{i:08}".encode(), datum.SerializeToString())
    (folder / "picture.ppm").write_bytes(b"P6 3 3 255\n" + bytes(range(27)))
    (folder / "list.txt").write_text(f"{folder}/picture.ppm 0\n")


# ---- the child ---------------------------------------------------------------------------------


def run_net(caffe, path: str, phase: int, rng: random.Random) -> str:
    """Set up a net and use it: "error" if that is caffe.Error, otherwise "works"."""
    try:
        net = caffe.Net(path, phase)
        for name in net.inputs:  # labels and indices among them
            value = rng.choice((0, 0, 1, 1, 2, *FLOATS))
            if value and net.blobs[name].count:
                net.blobs[name].data[...] = value
        net.forward()
        net.backward()
        for output in net.outputs:
            shape = net.blobs[output].data.shape
            # Python's own arrays are no matter of Caffe.
            if max(net.blobs[name].count for name in (output, *net.inputs)) > 10**6:
                continue
            if shape and not net.inputs:
                net.sample(2, images=shape[0], output=output)
            elif shape:
                inputs = {name: net.blobs[name].data.copy() for name in net.inputs}
                net.sample(2, inputs, output=output)
    except caffe.Error:
        return "error"
    except ValueError:
        return "unsuited to net.sample"
    return "works"


def child(seed: int, first: int, last: int, folder: Path, megabytes: int) -> None:
    """Run nets, and tell the parent when one begins and how it ends."""
    import caffe

    caffe.set_mode_cpu()
    # What the libraries take once, they take before the limit holds.
    path = folder / "net.prototxt"
    path.write_text(
        'layer { name: "a" type: "Input" top: "a"'
        "        input_param { shape { dim: 64 dim: 4 dim: 9 dim: 9 } } }"
        'layer { name: "b" type: "Convolution" bottom: "a" top: "b"'
        "        convolution_param { num_output: 64 kernel_size: 3 } }"
        'layer { name: "c" type: "BayesInnerProduct" bottom: "b" top: "c"'
        "        inner_product_param { num_output: 64 } bayes_param { kl_weight: 0 } }"
    )
    run_net(caffe, str(path), caffe.TEST, random.Random(0))
    limit = address_space() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(first, last):
        net = make_net(seed, number, folder)
        path.write_text(str(net))
        caffe.set_random_seed(1)
        print("begin", number, flush=True)
        try:
            rng = random.Random(f"{seed} {number} data")
            result = run_net(caffe, str(path), net.state.phase, rng)
        except BaseException as error:
            result = f"raises {type(error).__name__}: {error}"
        print("end", number, result.replace("\n", " "), flush=True)


# ---- the parent --------------------------------------------------------------------------------


@dataclass
class Failure:
    """A net that neither works nor gives caffe.Error."""

    number: int
    reason: str


def fuzz(
    seed: int, count: int, megabytes: int = 400, seconds: float = 30, first: int = 0
) -> tuple[Counter, list[Failure]]:
    """Run the nets of a seed from `first` to before `count`: how they ended, and those that
    failed."""
    results: Counter = Counter()
    failures = []
    number = first
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        while number < count:
            number, reason = _run_children(seed, number, count, folder, megabytes, seconds, results)
            if reason:
                failures.append(Failure(number, reason))
                number += 1
    results["fails"] = len(failures)
    return results, failures


def _run_children(seed, first, count, folder, megabytes, seconds, results) -> tuple[int, str]:
    """Run nets in one child until one fails: its number and why, or `count` and nothing."""
    command = [sys.executable, __file__, "--seed", seed, "--count", count, "--memory", megabytes]
    with (folder / "stderr").open("w+") as stderr:
        process = subprocess.Popen(
            [str(part) for part in (*command, "--child", folder, "--first", first)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **STRICT_MALLOC},
        )
        number, pending = first, b""
        deadline = time.monotonic() + 60 + seconds
        try:
            while True:
                if not select.select([process.stdout], [], [], deadline - time.monotonic())[0]:
                    return number, f"takes more than {seconds} s"
                data = process.stdout.read1()
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                deadline = time.monotonic() + seconds
                for line in lines:
                    event, at, *result = line.decode(errors="replace").split(" ", 2)
                    number = int(at) + (event == "end")
                    if result and result[0].startswith("raises "):
                        return int(at), result[0]
                    results.update(result)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if number == count and process.returncode in (0, -9):
            return count, ""
        stderr.seek(0)
        return number, f"ends the process with {process.returncode}: {stderr.read()[-300:].strip()}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--memory", type=int, default=400, metavar="MB")
    parser.add_argument("--seconds", type=float, default=30, metavar="T")
    parser.add_argument("--show", type=int, metavar="K")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.seed, options.first, options.count, options.child, options.memory)
        return 0
    if options.show is not None:
        print(make_net(options.seed, options.show, Path("FOLDER")))
        return 0
    results, failures = fuzz(options.seed, options.count, options.memory, options.seconds)
    for failure in failures:
        print(f"==== net {failure.number} of seed {options.seed} {failure.reason}")
        print(make_net(options.seed, failure.number, Path("FOLDER")))
    print(", ".join(f"{n} {how}" for how, n in sorted(results.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
