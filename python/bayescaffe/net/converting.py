"""Makes a stock net Bayesian, and a Bayesian net stock: `convert`.

    bayescaffe.convert("solver.prototxt", "stock.caffemodel", layers=["fc*"], out="bayes")

The layers of the prototxts change, in their messages and in their text; `converted_weights` makes
the caffemodel.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import scratch_file
from bayescaffe.data.interface import Shape
from bayescaffe.net import starting
from bayescaffe.net.converted_weights import bayesian_weights, stock_weights
from bayescaffe.net.layer_kinds import (
    bayesian_type,
    data_tops,
    has_bayesian_form,
    is_bayesian,
    stock_blobs,
    stock_type,
)
from bayescaffe.net.net_files import (
    NetFiles,
    Prototxt,
    is_trained,
    read_net_files,
    train_records,
)
from bayescaffe.net.new_data import with_data
from bayescaffe.net.new_solver import new_solver
from bayescaffe.net.prototext import update
from bayescaffe.net.shapes import count_parameters


@dataclass(frozen=True)
class Conversion:
    """What `convert` has written."""

    nets: list[Path]
    solver: Path | None
    weights: Path | None
    layers: list[str]
    """The names of the layers that have changed."""
    dataset_size: int | None
    notes: list[str] = field(default_factory=list)
    """What the user may not expect."""


def convert(
    net: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    *,
    layers: Sequence[str] | str | None = None,
    last: int | None = None,
    data: str | os.PathLike | None = None,
    dataset_size: int | None = None,
    shape: Shape | None = None,
    out: str | os.PathLike | None = None,
    to_stock: bool = False,
    cpu: bool = False,
) -> Conversion:
    """Write the Bayesian form of a net, its solver and its weights.

    Args:
        net: a prototxt for training or for deployment, or a solver.
        weights: a caffemodel of the net as it is; its weights become the means.
        layers: names or patterns (`fc*`) of the layers to convert. By default all that can be,
            without those that are frozen by `lr_mult: 0`.
        last: convert only so many of them, the last ones.
        data: a folder that `bayescaffe data` wrote. The net gets its LMDBs, its mean image in place
            of another, and as many classes as it has.
        dataset_size: the number of training examples, if the net's LMDB does not tell.
        shape: channels, height and width of the images, if the net's LMDB does not tell.
        out: the folder to write to; by default `bayes` (or `stock`) beside `net`.
        to_stock: convert Bayesian layers to stock layers instead.
        cpu: let the solver compute on the CPU.
    """
    notes: list[str] = []
    files, new = with_data(read_net_files(net, notes), data, notes)
    folder = Path(out) if out is not None else Path(net).parent / ("stock" if to_stock else "bayes")
    names = _chosen(files, layers, last, to_stock, notes)
    size = None if to_stock else _dataset_size(files, dataset_size, notes)
    kl_weight = 0.0 if size is None else _kl_weight(files.nets[0], names, size, shape, notes)
    texts = {
        folder / one.path.name: _stock_text(one, names)
        if to_stock
        else _bayesian_text(one, names, size, kl_weight)
        for one in files.nets
    }
    if len(texts) < len(files.nets):
        raise BayesCaffeError(f"{net}: two of its nets have the same file name; rename one")
    nets = list(texts)
    model = None if weights is None else folder / Path(weights).with_suffix(".caffemodel").name
    solver = None
    if files.solver:
        solver = folder / files.solver.path.name
        texts[solver] = _solver_text(files, folder, model, cpu, notes)
    elif is_trained(files.nets[0].message) and not to_stock:
        solver = folder / "solver.prototxt"
        texts[solver] = new_solver(files.nets[0].message, nets[0], size, model)
    _refuse_to_overwrite([one.path for one in (*files.nets, files.solver) if one], texts)
    folder.mkdir(parents=True, exist_ok=True)
    if model is not None:
        _refuse_to_overwrite([Path(weights)], [model])
        write = stock_weights if to_stock else bayesian_weights
        write(texts[nets[0]], names, weights, model, new, notes)
    for path, text in texts.items():
        with scratch_file(path) as scratch:
            scratch.write_text(text)
    return Conversion(nets, solver, model, names, size, notes)


# ---- The choice of layers -----------------------------------------------------------------------


def _chosen(
    files: NetFiles,
    patterns: Sequence[str] | str | None,
    last: int | None,
    to_stock: bool,
    notes: list[str],
) -> list[str]:
    """The names of the layers to convert, in the order of the net."""
    everything = [layer for one in files.nets for layer in one.message.layer]
    can = is_bayesian if to_stock else has_bayesian_form
    able = {layer.name: layer for layer in everything if can(layer)}
    where = files.nets[0].path
    if not able:
        kind = "Bayesian layer" if to_stock else "stock layer that has a Bayesian form"
        raise BayesCaffeError(f"{where}: has no {kind}, so there is nothing to convert")
    if patterns is not None:
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in able):
                raise BayesCaffeError(
                    f"{where}: {argument('layers', pattern)}: no such layer can be converted; "
                    f"those that can be are {', '.join(able)}"
                )
        names = [name for name in able if any(_matches(name, one) for one in patterns)]
    else:
        frozen = [] if to_stock else [name for name, layer in able.items() if _is_frozen(layer)]
        if frozen:
            notes.append(
                f"frozen (lr_mult: 0), so left stock: {', '.join(frozen)}; "
                f"{argument('layers')} converts them"
            )
        names = [name for name in able if name not in frozen]
    if last is not None:
        if not 1 <= last <= len(names):
            raise BayesCaffeError(f"{argument('last', last)}: must be within 1..{len(names)}")
        names = names[-last:]
    return _with_sharers(able, names, notes)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _is_frozen(layer) -> bool:
    rates = [param.lr_mult for param in layer.param[: stock_blobs(layer)]]
    return len(rates) == stock_blobs(layer) and not any(rates)


def _with_sharers(able: dict, names: list[str], notes: list[str]) -> list[str]:
    """The names, with those of the layers that share parameters with them."""
    chosen = set(names)
    while True:
        shared = {param.name for name in chosen for param in able[name].param if param.name}
        more = {
            name
            for name, layer in able.items()
            if name not in chosen and any(param.name in shared for param in layer.param)
        }
        if not more:
            return [name for name in able if name in chosen]
        notes.append(f"converted as well, since they share parameters: {', '.join(sorted(more))}")
        chosen |= more


# ---- Layers -------------------------------------------------------------------------------------


def _bayesian_text(
    one: Prototxt, names: Sequence[str], dataset_size: int | None, kl_weight: float | None
) -> str:
    """The text of a net with its layers made Bayesian.

    A net for deployment has no dataset_size: it is not trained, so KL and the rates of its
    parameters do not matter.
    """
    after = type(one.message)()
    after.CopyFrom(one.message)
    for layer in after.layer:
        if layer.name not in names or not has_bayesian_form(layer):
            continue
        layer.type = bayesian_type(layer)
        if kl_weight is not None:
            layer.bayes_param.kl_weight = kl_weight
        if dataset_size is not None:
            _make_bayesian(layer, dataset_size)
    return update(one.text, one.message, after, one.path)


def _make_bayesian(layer, dataset_size: int) -> None:
    count = stock_blobs(layer)
    # Entries beyond the layer's blobs, which Caffe ignores, would become those of delta.
    del layer.param[count:]
    while len(layer.param) < count:
        layer.param.add()  # empty, so that the way back knows it
    for param in list(layer.param):
        delta = layer.param.add(lr_mult=starting.DELTA_LR_MULT)
        if param.name:
            delta.name = f"{param.name}_delta"
    layer.bayes_param.dataset_size = dataset_size
    layer.bayes_param.tau_init = starting.TAU_INIT
    if layer.type == "BayesInnerProduct":
        layer.bayes_param.local_reparametrization = True
    elif layer.type in ("BayesConvolution", "BayesDeconvolution"):
        layer.bayes_param.draws_per_batch = starting.DRAWS_PER_BATCH


def _stock_text(one: Prototxt, names: Sequence[str]) -> str:
    """The text of a net with its Bayesian layers made stock."""
    after = type(one.message)()
    after.CopyFrom(one.message)
    for layer in after.layer:
        if layer.name in names and is_bayesian(layer):
            _make_stock(layer)
    return update(one.text, one.message, after, one.path)


def _make_stock(layer) -> None:
    if len(data_tops(layer)) < len(layer.top):  # the KL
        del layer.loss_weight[len(data_tops(layer)) :]
        layer.top.pop()
    layer.type = stock_type(layer)
    layer.ClearField("bayes_param")
    del layer.param[stock_blobs(layer) :]
    while layer.param and not layer.param[-1].ListFields():
        layer.param.pop()


# ---- Data and solver ----------------------------------------------------------------------------


def _dataset_size(files: NetFiles, given: int | None, notes: list[str]) -> int | None:
    if given is not None and given < 1:
        raise BayesCaffeError(f"{argument('dataset_size', given)}: must be 1 or more")
    net = files.nets[0]
    found = train_records(net.message)
    if given is not None:
        wrong = [f"{path} has {count:,}" for path, count in found.items() if count != given]
        if wrong:
            notes.append(f"dataset_size is {given:,}, as you say; {', '.join(wrong)} records")
        return given
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    if not files.solver and not is_trained(net.message):
        return None
    if found:
        sizes = ", ".join(f"{path} has {count:,}" for path, count in found.items())
        raise BayesCaffeError(
            f"{net.path}: {sizes} records; say which by {argument('dataset_size')}"
        )
    raise BayesCaffeError(
        f"{net.path}: the number of training examples is not known, as the data that it is trained "
        f"on is not here; give it as {argument('dataset_size')}"
    )


def _kl_weight(
    net: Prototxt, names: Sequence[str], dataset_size: int, shape: Shape | None, notes: list[str]
) -> float | None:
    """The kl_weight of each layer, by the rule for the number of weights of all of them.

    None, which leaves it to the net, if these cannot be counted.
    """
    try:
        weights = count_parameters(net.message, names, shape)
    except BayesCaffeError as error:
        notes.append(
            f"kl_weight is left out, as the number of weights is not known ({error}); the net "
            "chooses it when it is trained"
        )
        return None
    return starting.kl_weight(dataset_size, weights)


def _solver_text(
    files: NetFiles, folder: Path, model: Path | None, cpu: bool, notes: list[str]
) -> str:
    solver = files.solver
    after = type(solver.message)()
    after.CopyFrom(solver.message)
    for name in ("net", "train_net"):
        if after.HasField(name):
            setattr(after, name, str(folder / Path(getattr(after, name)).name))
    after.test_net[:] = [str(folder / Path(name).name) for name in after.test_net]
    if after.HasField("snapshot_prefix"):
        after.snapshot_prefix = str(folder / Path(after.snapshot_prefix).name)
    if model is not None:
        after.weights[:] = [str(model)]
    if after.snapshot_format == after.HDF5:
        after.snapshot_format = after.BINARYPROTO
        notes.append("snapshot_format is now BINARYPROTO: the other commands do not read HDF5")
    if cpu:
        after.solver_mode = after.CPU
    return update(solver.text, solver.message, after, solver.path)


def _refuse_to_overwrite(read: Sequence[Path], written: Iterable[Path]) -> None:
    taken = {path.resolve() for path in read}
    for path in written:
        if path.resolve() in taken:
            raise BayesCaffeError(
                f"{argument('out', str(path.parent))}: would overwrite {path}; name another folder"
            )
