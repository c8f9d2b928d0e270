"""Numbers that make no sense in nets and solvers, each with what the error must say.

They are tried one by one in test_limits.py, and through all commands by `make test-faults`.
"""

# ---- layers ------------------------------------------------------------------------------------


def one_layer(kind: str, parameters: str, shape=(2, 4, 6, 6), bottoms: int = 1) -> str:
    """A net of an input and one layer, "x"."""
    dims = " ".join(f"dim: {length}" for length in shape)
    tops = " ".join(f'top: "data{i or ""}"' for i in range(max(bottoms, 1)))
    names = " ".join(f'bottom: "data{i or ""}"' for i in range(bottoms))
    return f"""
        layer {{ name: "data" type: "Input" {tops} input_param {{ shape {{ {dims} }} }} }}
        layer {{ name: "x" type: "{kind}" {names} top: "x" {parameters} }}
    """


CONVOLUTION_KINDS = ("Convolution", "BayesConvolution", "Deconvolution")
WINDOW = "but must be 1 to 16777216"
CONVOLUTIONS = [
    ("pad: 4294967295", "pad is 4294967295, but must be 0 to 16777216"),
    ("pad: 2147483648", "pad is 2147483648, but must be 0 to 16777216"),
    ("pad_h: 2147483648 pad_w: 0", "pad_h is 2147483648, but must be 0 to 16777216"),
    ("pad_h: 0 pad_w: 2147483648", "pad_w is 2147483648, but must be 0 to 16777216"),
    ("dilation: 2147483648", f"dilation is 2147483648, {WINDOW}"),
    ("dilation: 0", f"dilation is 0, {WINDOW}"),
    ("stride_h: 0 stride_w: 1", f"stride_h is 0, {WINDOW}"),
    ("stride: 0", f"stride is 0, {WINDOW}"),
    ("group: 0", "group is 0, but must be 1 to 2147483647"),
    ("axis: -2147483648", "axis is -2147483648, but must be -32 to 32"),
    ("weight_filler { value: inf }", "weight_filler.value is inf, but must be a finite number"),
    ("bias_filler { std: nan }", "bias_filler.std is nan, but must be a finite number, 0 or gr"),
    ("weight_filler { min: -inf }", "weight_filler.min is -inf, but must be a finite number"),
]
"""What to add to convolution_param, and how the error goes on behind it."""

LAYERS = [
    (
        "Reshape",
        "reshape_param { shape { dim: 0 dim: 2147483648 } }",
        "reshape_param.shape.dim is 2147483648, but must be -1 to 2147483647",
    ),
    (
        "SPP",
        "spp_param { pyramid_height: 2147483647 }",
        "spp_param.pyramid_height is 2147483647, but must be 1 to 16",
    ),
    (
        "Data",
        "data_param { prefetch: 0 batch_size: 2 }",
        "data_param.prefetch is 0, but must be 1 to 1024",
    ),
    ("Data", "", "data_param.batch_size is missing, but must be 1 to 2147483647"),
    ("Data", "data_param { batch_size: 0 }", "data_param.batch_size is 0, but must be 1"),
    ("InnerProduct", "", "inner_product_param.num_output is missing, but must be 1 to"),
    (
        "Dropout",
        "dropout_param { dropout_ratio: 1 }",
        "dropout_param.dropout_ratio is 1, but must be 0 or greater and less than 1",
    ),
    ("Dropout", "dropout_param { dropout_ratio: -0.5 }", "dropout_ratio is -0.5, but must be"),
    ("Dropout", "dropout_param { dropout_ratio: nan }", "dropout_ratio is nan, but must be"),
    ("Dropout", "dropout_param { dropout_ratio: inf }", "dropout_ratio is inf, but must be"),
    ("Power", "loss_weight: nan", "loss_weight is nan, but must be a finite number"),
    ("Power", "loss_weight: inf", "loss_weight is inf, but must be a finite number"),
    ("Bias", "param { lr_mult: -1 }", "param.lr_mult is -1, but must be a finite number, 0"),
    ("Bias", "param { lr_mult: inf }", "param.lr_mult is inf, but must be a finite number"),
    ("Bias", "param { lr_mult: nan }", "param.lr_mult is nan, but must be a finite number"),
    ("Bias", "param { decay_mult: nan }", "param.decay_mult is nan, but must be a finite"),
    (
        "SoftmaxWithLoss",
        "loss_param { alpha: -0.5 }",
        "loss_param.alpha is -0.5, but must be 0 to 100",
    ),
    ("SoftmaxWithLoss", "loss_param { alpha: nan }", "loss_param.alpha is nan, but must be 0"),
    ("Power", "power_param { shift: inf }", "power_param.shift is inf, but must be a finite"),
]
"""The type of a layer, its parameters, and what the error says."""

BAYES_PARAMS = [
    ("tau_init: 1e38", "tau_init is 1e+38, but must be 0 to 1000"),
    ("bias_tau_init: 1e38", "bias_tau_init is 1e+38, but must be 0 to 1000"),
    ("prior_std: 1e-30", "prior_std is 1e-30, but must be 1e-06 to 1000000"),
    ("bias_prior_std: 1e30", "bias_prior_std is 1e+30, but must be 1e-06 to 1000000"),
    ("prior_mean: -1e30", "prior_mean is -1e+30, but must be -1000000 to 1000000"),
    ("draws_per_batch: 1000000000", "draws_per_batch is 1000000000, but must be 1 to 1024"),
]
"""What to add to bayes_param, and what the error says."""

SIZES = [
    (
        "Pooling",
        "pooling_param { pool: AVE kernel_size: 1 stride: 2 }",
        "the last window along spatial axis 0 lies behind the image and has no mean: kernel_size "
        "is 1, stride is 2, and there are 6 pixels; set round_mode: FLOOR",
    ),
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 9 }",
        "the kernel is larger than the image along spatial axis 0: kernel_size is 9, with "
        "dilation 1 it covers 9 pixels, but must cover at most the 6 that there are (6 and 2 "
        "times a pad of 0)",
    ),
    (
        "Im2col",
        "convolution_param { kernel_size: 3 dilation: 4 pad: 1 }",
        "kernel_size is 3, with dilation 4 it covers 9 pixels, but must cover at most the 8",
    ),
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 stride_h: 2 }",
        "stride along spatial axis 1 must be 1 or more; stride_h and stride_w are given tog",
    ),
    (
        "Deconvolution",
        "convolution_param { num_output: 4 kernel_size: 3 pad: 4 }",
        "the output would have 0 pixels along spatial axis 0 (kernel_size 3, stride 1, dil",
    ),
    (
        "Pooling",
        "pooling_param { kernel_size: 8 stride: 2 }",
        "kernel_size is 8, but must be at most 7, as there are 6 pixels, a pad of 0 and a st",
    ),
    (
        "Pooling",
        "pooling_param { kernel_size: 7 stride: 2 round_mode: FLOOR }",
        "kernel_size is 7, but must be at most 6, as there are 6 pixels, a pad of 0 and a st",
    ),
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 pad: 16777216 }",
        "blob size exceeds INT_MAX: the shape is 2 x 4 x 33554436 x 33554436",
    ),
    (
        "Reshape",
        "reshape_param { shape { dim: 65536 dim: 65536 dim: -1 } }",
        "a blob of 65536 times 65536 elements is too large",
    ),
]
"""As LAYERS: numbers that are allowed, but not with images of this size."""

# ---- solvers -----------------------------------------------------------------------------------

POSITIVE = "but must be a finite number, 0 or greater"
SHARE = "but must be 0 or greater and less than 1"
COUNT = "but must be 1 to 2147483647"
SOLVERS = [
    ("momentum", "1", SHARE),
    ("momentum", "-0.1", SHARE),
    ("momentum", "nan", SHARE),
    ("momentum", "inf", SHARE),
    ("momentum2", "1", SHARE),
    ("rms_decay", "1.5", SHARE),
    ("base_lr", "-0.1", POSITIVE),
    ("base_lr", "nan", POSITIVE),
    ("base_lr", "inf", POSITIVE),
    ("weight_decay", "-1", POSITIVE),
    ("weight_decay", "nan", POSITIVE),
    ("weight_decay", "inf", POSITIVE),
    ("clip_gradients", "nan", "but must be a finite number"),
    ("clip_gradients", "inf", "but must be a finite number"),
    ("gamma", "-1", POSITIVE),
    ("power", "nan", "but must be a finite number"),
    ("iter_size", "0", COUNT),
    ("iter_size", "-1", COUNT),
    ("average_loss", "0", COUNT),
    ("test_iter", "0", COUNT),
    ("test_iter", "-1", COUNT),
    ("snapshot", "-1", "but must be 0 to 2147483647"),
    ("test_draws", "-1", "but must be 0 to 2147483647"),
]
"""A field, its value, and what the error says behind them."""

STEPS = [
    ('"multistep"', "solver: stepvalue is missing, but must be given once or more with lr_p"),
    ('"multistep"\nstepvalue: 5\nstepvalue: 3', "solver: stepvalue is 3 after 5, but each mu"),
    ('"step"', 'solver: stepsize is missing, but must be 1 to 2147483647 with lr_policy: "st'),
    ('"step"\nstepsize: 0', "solver: stepsize is 0, but must be 1 to 2147483647"),
]
"""What follows lr_policy, and what the error says."""
