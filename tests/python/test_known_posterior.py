"""Training finds a posterior that is known: Bayesian linear regression with Gaussian noise.

Data: N pairs (x, y) with y = w.x + noise, the noise of variance 1. EuclideanLoss is the mean over
the N examples of (w.x - y)^2 / 2, the negative log-likelihood of an example up to a constant. With
A = mean of x x^T, b = mean of y x, the family q(w_j) = N(m_j, (tau m_j)^2) and the prior
N(mu, zeta^2), the objective is, up to constants and with lam = kl_weight / dataset_size,

    L = m.A m / 2 - b.m + tau^2 / 2 sum_j A_jj m_j^2
        + lam sum_j [-ln tau - ln|m_j| + (tau^2 m_j^2 + (m_j - mu)^2) / (2 zeta^2)].

One weight: with the standard deviation v = tau |m| as a variable, m and v separate. dL/dm = 0 and
dL/dv = 0 give

    m = (b + lam mu / zeta^2) / (A + lam / zeta^2),    v^2 = lam / (A + lam / zeta^2),

which for lam = 1 / N is the exact posterior: its precision is sum x^2 + 1 / zeta^2.

Several weights that share tau (and biases, whose x is 1, with their own tau, mu and zeta):

    dL/dm_j = (A m)_j + tau^2 A_jj m_j - b_j + lam [-1/m_j + (tau^2 m_j + m_j - mu) / zeta^2] = 0
    dL/dtau = tau sum_j A_jj m_j^2 + lam [-K / tau + tau / zeta^2 sum_j m_j^2] = 0,

the sums over the K parameters with that tau. SciPy solves these. As -ln|m| keeps a weight from 0,
there is an optimum for each choice of signs; here all are positive, and training starts there.

A tau for each weight (`posterior: PER_WEIGHT`): the standard deviations v_j = tau_j |m_j| are
variables of their own, so m and v separate as for one weight, and dL/dm = 0 and dL/dv = 0 give

    m = (A + lam / zeta^2 I)^-1 (b + lam mu / zeta^2),    v_j^2 = lam / (A_jj + lam / zeta^2).

For lam = 1 / N, m is the mean of the exact posterior, and v_j^-2 the diagonal of its precision.

A tau for each output (`posterior: PER_OUTPUT`): the loss is a sum over outputs, which have weights
of their own, so each output has the optimum of a regression by itself.
"""

import numpy as np
import pytest
from conftest import write_solver
from scipy import optimize

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
pytestmark = pytest.mark.engine

N = 32
ITERATIONS = 60_000
# How near to the optimum training ends: m within a share of the largest standard deviation, tau
# within a share of itself. Ten percent too much or too little KL moves tau by 4 %.
M_TOLERANCE = 0.03
TAU_TOLERANCE = 0.02
WAYS = ("", "draws_per_batch: 8", "local_reparametrization: true")


def regression(weights, bias=0.0):
    """N inputs and outputs of a regression with correlated inputs."""
    random = np.random.default_rng(3)
    mix = np.eye(len(weights)) + 0.3
    x = random.standard_normal((N, len(weights))) @ mix
    y = x @ weights + bias
    return x, y + random.standard_normal(y.shape)


def train(folder, x, y, options, bias_term):
    """m and tau of all weights after a training by the solver, then those of all biases."""
    y = y.reshape(N, -1)
    # tau = softplus(delta) is small, and so is the gradient of delta.
    blobs = 1 + bias_term
    params = "param { } " * blobs + "param { lr_mult: 20 } " * blobs
    net = f"""
        layer {{ name: "x" type: "Input" top: "x"
                 input_param {{ shape {{ dim: {N} dim: {x.shape[1]} }} }} }}
        layer {{ name: "y" type: "Input" top: "y"
                 input_param {{ shape {{ dim: {N} dim: {y.shape[1]} }} }} }}
        layer {{ name: "fit" type: "BayesInnerProduct" bottom: "x" top: "fit" {params}
                 inner_product_param {{
                   num_output: {y.shape[1]} bias_term: {str(bias_term).lower()}
                   weight_filler {{ value: 0.8 }} bias_filler {{ value: 0.8 }} }}
                 bayes_param {{ dataset_size: {N} tau_init: 0.5 bias_tau_init: 0.5 {options} }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "fit" bottom: "y" top: "loss" }}"""
    # A learning rate that falls as 1 / iteration averages over the noise of all draws.
    rates = {"base_lr": 0.3, "lr_policy": '"inv"', "gamma": 0.1, "power": 1, "momentum": 0}
    solver = pycaffe.get_solver(str(write_solver(folder, net, ITERATIONS, display=0, **rates)))
    solver.net.blobs["x"].data[...] = x
    solver.net.blobs["y"].data[...] = y
    solver.step(ITERATIONS)
    solver.net.save(str(folder / "trained.caffemodel"))
    taus = solver.net.taus("fit")
    means = [blob.data.ravel().copy() for blob in solver.net.params["fit"][: len(taus)]]
    return np.concatenate(means), np.concatenate([tau.ravel() for tau in taus])


def optimum(x, y, kl_weight, groups):
    """m and tau where the objective is stationary, for groups of (columns of x, mu, zeta)."""
    a, b, lam = x.T @ x / len(x), x.T @ y / len(x), kl_weight / len(x)
    group_of = np.concatenate([[i] * len(columns) for i, (columns, _, _) in enumerate(groups)])
    mu, zeta = (np.array([group[i] for group in groups])[group_of] for i in (1, 2))

    def slopes(unknowns):
        m, taus = unknowns[: len(b)], np.exp(unknowns[len(b) :])
        tau = taus[group_of]
        by_m = a @ m + tau**2 * np.diag(a) * m - b
        by_m += lam * (-1 / m + (tau**2 * m + m - mu) / zeta**2)
        by_tau = tau * np.diag(a) * m**2 + lam * (-1 / tau + tau * m**2 / zeta**2)
        return np.concatenate([by_m, np.bincount(group_of, by_tau)])

    start = np.concatenate([np.linalg.solve(a, b), np.log([0.2] * len(groups))])
    solution = optimize.root(slopes, start, tol=1e-12)
    assert solution.success and np.abs(slopes(solution.x)).max() < 1e-9
    return solution.x[: len(b)], np.exp(solution.x[len(b) :])


def assert_near(found, expected, group_of):
    (m, taus), (expected_m, expected_taus) = found, expected
    std = (expected_taus[group_of] * np.abs(expected_m)).max()
    assert m == pytest.approx(expected_m, rel=0, abs=M_TOLERANCE * std)
    assert taus == pytest.approx(expected_taus, rel=TAU_TOLERANCE)


@pytest.mark.parametrize("way", WAYS)
def test_one_weight_finds_the_exact_posterior(tmp_path, way):
    x, y = regression([1.2])
    mu, zeta = 0.3, 0.25
    options = f"kl_weight: 1 prior_mean: {mu} prior_std: {zeta} {way}"
    found = train(tmp_path, x, y, options, bias_term=False)
    precision = np.sum(x**2) + 1 / zeta**2
    m = (x[:, 0] @ y + mu / zeta**2) / precision
    exact = np.array([m]), np.array([precision**-0.5 / abs(m)])
    for ours, worked_out in zip(optimum(x, y, 1, [([0], mu, zeta)]), exact, strict=True):
        assert ours == pytest.approx(worked_out, rel=1e-8)
    assert_near(found, exact, np.zeros(1, int))


@pytest.mark.parametrize("way", WAYS)
def test_several_weights_and_a_bias_find_the_optimum(tmp_path, way):
    x, y = regression([1.2, 0.9, 0.7], bias=1.5)
    options = "kl_weight: 2 prior_mean: 0.2 prior_std: 0.4 bias_prior_mean: 0.5 bias_prior_std: 0.6"
    found = train(tmp_path, x, y, f"{options} {way}", bias_term=True)
    with_ones = np.column_stack([x, np.ones(N)])
    expected = optimum(with_ones, y, 2, [([0, 1, 2], 0.2, 0.4), ([3], 0.5, 0.6)])
    assert_near(found, expected, np.array([0, 0, 0, 1]))


@pytest.mark.parametrize("way", WAYS)
def test_each_weight_finds_its_own_tau(tmp_path, way):
    """The known optimum, and not the one with a common tau."""
    x, y = regression([1.2, 0.9, 0.7], bias=1.5)
    x[:, 1] *= 2
    priors = "prior_mean: 0.2 prior_std: 0.4 bias_prior_mean: 0.5 bias_prior_std: 0.6"
    options = f"kl_weight: 1 {priors} posterior: PER_WEIGHT {way}"
    found = train(tmp_path, x, y, options, bias_term=True)
    inputs = np.column_stack([x, np.ones(N)])
    mu, zeta = np.array([0.2, 0.2, 0.2, 0.5]), np.array([0.4, 0.4, 0.4, 0.6])
    precision = inputs.T @ inputs + np.diag(1 / zeta**2)
    m = np.linalg.solve(precision, inputs.T @ y + mu / zeta**2)
    exact = m, np.diag(precision) ** -0.5 / np.abs(m)
    each = np.arange(4)
    for ours, worked_out in zip(
        optimum(inputs, y, 1, [([i], mu[i], zeta[i]) for i in each]), exact, strict=True
    ):
        assert ours == pytest.approx(worked_out, rel=1e-8)
    assert exact[1].max() > 2 * exact[1].min()
    assert_near(found, exact, each)


def test_each_output_finds_its_own_tau(tmp_path):
    x, y = regression(np.array([[1.2, 2.5], [0.9, 1.8]]))
    options = "kl_weight: 1 prior_mean: 0.2 prior_std: 0.8 posterior: PER_OUTPUT draws_per_batch: 8"
    m, taus = train(tmp_path, x, y, options, bias_term=False)
    assert taus.shape == (2,)
    expected = [optimum(x, y[:, i], 1, [([0, 1], 0.2, 0.8)]) for i in range(2)]
    assert abs(np.log(expected[0][1] / expected[1][1])) > 0.2
    for i in range(2):
        found = m.reshape(2, 2)[i], taus[i : i + 1]
        assert_near(found, expected[i], np.zeros(2, int))


def test_the_posterior_of_the_first_data_is_the_prior_of_the_second(tmp_path):
    """One weight: after both trainings, the exact posterior of all data."""
    x, y = regression([1.2])
    mu, zeta = 0.3, 0.25
    first, second = slice(0, N // 2), slice(N // 2, N)
    # The net takes N examples; half of them twice is a data set of half the size.
    double = [np.concatenate([part, part]) for part in (x[first], y[first], x[second], y[second])]
    prior = f"prior_mean: {mu} prior_std: {zeta}"
    common = "kl_weight: 2"  # by a dataset_size of N
    (tmp_path / "1").mkdir()
    train(tmp_path / "1", *double[:2], f"{common} {prior}", bias_term=False)
    trained = tmp_path / "1" / "trained.caffemodel"
    (tmp_path / "2").mkdir()
    found = train(tmp_path / "2", *double[2:], f'{common} prior_from: "{trained}"', bias_term=False)
    precision = np.sum(x**2) + 1 / zeta**2
    m = (x[:, 0] @ y + mu / zeta**2) / precision
    # The first training ends near its optimum, not at it; so does the second.
    std = precision**-0.5
    assert found[0] == pytest.approx([m], abs=2 * M_TOLERANCE * std)
    assert found[1] == pytest.approx([std / abs(m)], rel=2 * TAU_TOLERANCE)
