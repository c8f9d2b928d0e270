"""What the paper reports, as printed in its tables 1 to 5.

K. Posch, J. Steinbrener, J. Pilz: Variational Inference to Measure Model Uncertainty in Deep Neural
Networks (2019).
"""

# Test errors, in %.
STOCK_ERROR = {"plain": 0.90, "dropout": 0.75, "exchanged": 1.94}
BAYES_ERROR = {"plain": 0.85, "dropout": 0.71, "exchanged": 1.64}
# Of the weights and of the biases.
TAU = {
    "dropout": {
        "conv1": (0.003905073, 0.01703058),
        "conv2": (0.000045391, 0.1021243),
        "fc1": (0.7580626, 0.1471348),
        "fc2": (0.02509901, 0.00004402),
    },
    "reduced": {
        "conv1": (0.003570068, 0.01361556),
        "conv2": (0.000045395, 0.1025237),
        "fc1": (0.5672782, 0.1359651),
        "fc2": (0.01789308, 0.00004324),
    },
}
# Images of the Bayesian net without dropout.
CERTAINTY = {
    "correct_certain": 9609,
    "correct_uncertain": 297,
    "wrong_certain": 14,
    "wrong_uncertain": 80,
}
