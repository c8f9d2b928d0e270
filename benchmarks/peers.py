"""The same nets in PyTorch: plain, with the paper's method, and with Bayesian libraries.

A peer is a module with two methods. `kl()` is the divergence that its training step adds to the
loss. `set_means(weights, exact)` copies the weights of another net; `exact=True` also removes the
noise, so that the output can be compared before the peer is timed.
"""

import torch
from nets import Conv, Dense, Net, Pool
from torch import nn
from torch.nn import functional as F


class Peer(nn.Module):
    """A net that makes its layers with `make_conv` and `make_dense`."""

    def __init__(self, net: Net):
        super().__init__()
        channels, size = net.channels, net.size
        layers = []
        for layer in net.layers:
            if isinstance(layer, Conv):
                layers.append(self.make_conv(channels, layer.maps, layer.kernel, layer.pad))
                channels, size = layer.maps, size + 2 * layer.pad - layer.kernel + 1
            elif isinstance(layer, Dense):
                if size > 1:
                    layers.append(nn.Flatten())
                layers.append(self.make_dense(channels * size**2, layer.neurons))
                channels, size = layer.neurons, 1
            elif isinstance(layer, Pool):
                layers.append(nn.MaxPool2d(2))
                size //= 2
            else:
                layers.append(nn.ReLU())
        self.layers = nn.Sequential(*layers)

    def weighted(self):
        plain = (nn.Flatten, nn.MaxPool2d, nn.ReLU)
        return [layer for layer in self.layers if not isinstance(layer, plain)]

    def forward(self, x):
        return self.layers(x)

    def kl(self):
        return 0.0

    def set_means(self, weights: list, exact: bool) -> None:
        with torch.no_grad():
            for layer, (weight, bias) in zip(self.weighted(), weights, strict=True):
                mean, bias_mean, spreads = self.parameters_of(layer)
                mean.copy_(weight)
                bias_mean.copy_(bias)
                if exact:
                    for spread in spreads:
                        spread.fill_(-40.0)


class Plain(Peer):
    """PyTorch, deterministic."""

    make_conv = staticmethod(lambda i, o, k, p: nn.Conv2d(i, o, k, padding=p))
    make_dense = staticmethod(nn.Linear)

    def parameters_of(self, layer):
        return layer.weight, layer.bias, ()


class PaperLayer(nn.Module):
    """The paper's layer: w = m (1 + softplus(delta) epsilon)."""

    def __init__(self, apply, weight_shape, bias_shape):
        super().__init__()
        self.apply_weights = apply
        self.m = nn.Parameter(0.1 * torch.randn(weight_shape))
        self.m_b = nn.Parameter(0.01 * torch.randn(bias_shape))
        self.delta = nn.Parameter(torch.tensor(-0.71))
        self.delta_b = nn.Parameter(torch.tensor(-2.25))

    def sample(self):
        return [
            m * (1 + F.softplus(delta) * torch.randn_like(m))
            for m, delta in ((self.m, self.delta), (self.m_b, self.delta_b))
        ]

    def forward(self, x):
        return self.apply_weights(x, *self.sample())

    def kl(self):
        total = 0
        for m, delta, std in ((self.m, self.delta, 5.0), (self.m_b, self.delta_b, 10.0)):
            tau = F.softplus(delta)
            total = total + (0.5 * (1 + tau**2) / std**2 * (m * m).sum())
            total = total - m.abs().log().sum() - m.numel() * tau.log()
        return total


class ByHand(Peer):
    """The paper's method, written directly in PyTorch."""

    @staticmethod
    def make_conv(i, o, k, p):
        return PaperLayer(lambda x, w, b: F.conv2d(x, w, b, padding=p), (o, i, k, k), (o,))

    @staticmethod
    def make_dense(i, o):
        return PaperLayer(F.linear, (o, i), (o,))

    def parameters_of(self, layer):
        return layer.m, layer.m_b, (layer.delta, layer.delta_b)

    def kl(self):
        return sum(layer.kl() for layer in self.weighted())


def make_peers() -> dict[str, object]:
    """Name -> class of a peer, or the reason why it is missing."""
    peers: dict[str, object] = {
        "PyTorch, deterministic": Plain,
        "paper's method in PyTorch": ByHand,
    }
    try:
        from bayesian_torch.layers import Conv2dReparameterization, LinearReparameterization

        class BayesianTorch(Peer):
            make_conv = staticmethod(
                lambda i, o, k, p: Conv2dReparameterization(i, o, k, padding=p)
            )
            make_dense = staticmethod(LinearReparameterization)

            def forward(self, x):
                self.total_kl = 0.0
                for layer in self.layers:
                    x = layer(x)
                    if isinstance(x, tuple):
                        x, kl = x
                        self.total_kl = self.total_kl + kl
                return x

            def kl(self):
                return self.total_kl

            def parameters_of(self, layer):
                mean = getattr(layer, "mu_kernel", getattr(layer, "mu_weight", None))
                rho = getattr(layer, "rho_kernel", getattr(layer, "rho_weight", None))
                return mean, layer.mu_bias, (rho, layer.rho_bias)

        peers["bayesian-torch"] = BayesianTorch
    except ImportError as error:
        peers["bayesian-torch"] = f"not installed ({error})"
    try:
        from blitz.modules import BayesianConv2d, BayesianLinear

        class Blitz(Peer):
            make_conv = staticmethod(lambda i, o, k, p: BayesianConv2d(i, o, (k, k), padding=p))
            make_dense = staticmethod(BayesianLinear)

            def kl(self):
                return sum(x.log_variational_posterior - x.log_prior for x in self.weighted())

            def parameters_of(self, layer):
                return layer.weight_mu, layer.bias_mu, (layer.weight_rho, layer.bias_rho)

        peers["blitz"] = Blitz
    except ImportError as error:
        peers["blitz"] = f"not installed ({error})"
    try:
        import torchbnn

        class TorchBnn(Peer):
            make_conv = staticmethod(
                lambda i, o, k, p: torchbnn.BayesConv2d(0, 0.1, i, o, k, padding=p)
            )
            make_dense = staticmethod(lambda i, o: torchbnn.BayesLinear(0, 0.1, i, o))

            def kl(self):
                return torchbnn.BKLLoss()(self)

            def parameters_of(self, layer):
                spreads = (layer.weight_log_sigma, layer.bias_log_sigma)
                return layer.weight_mu, layer.bias_mu, spreads

        peers["torchbnn"] = TorchBnn
    except ImportError as error:
        peers["torchbnn"] = f"not installed ({error})"
    return peers
