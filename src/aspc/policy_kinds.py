"""The kinds of policies, each a function (arrays, settings, normalized observations, noise) → actions in [-1, 1]. This
module has more than 400 lines because an exported NumPy policy contains it as a single file.

The arrays are exported by an algorithm's `policy(state)`. An MLP consists of `layers.0.weight` [in, out],
`layers.0.bias`, … and, with LayerNorm, `norms.0.weight`, …. With several networks, each name has a prefix.

With NumPy arrays the functions compute actions. With the arrays of another library (JAX) or the symbols of an ONNX
graph, the same code builds the program that `aspc export` saves. The module therefore depends only on NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from aspc.action_space import are_valid_factors, factor_slices, joint_options
from aspc.policy_choices import FORBIDDEN, array_namespace, forbidden_options, largest
from aspc.policy_programs import MAX_RESULT, MAX_STEPS, run_program

Arrays = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]

MAX_SAMPLE = 10_000_000  # maximum size of the noise and of the arrays computed for one observation


# ---------------------------------------------------------------------------------------------------------------
# Networks
# ---------------------------------------------------------------------------------------------------------------


def relu(x: Any) -> Any:
    return array_namespace(x).maximum(x, 0)


def gelu(x: Any) -> Any:
    """GELU with the tanh approximation."""
    return 0.5 * x * (1 + array_namespace(x).tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def mish(x: Any) -> Any:
    """Mish, x·tanh(log(1 + eˣ)), with one exponential: tanh(log(1 + e)) = n/(n + 2), n = e·(e + 2)."""
    xp = array_namespace(x)
    e = xp.exp(xp.minimum(x, 20.0))  # above 20 the factor is 1 in float32
    n = e * (e + 2)
    return x * (n / (n + 2))


def silu(x: Any) -> Any:
    """SiLU (Swish), x / (1 + e⁻ˣ)."""
    xp = array_namespace(x)
    return x / (1 + xp.exp(xp.minimum(0 - x, 80.0)))  # e⁸⁰ still fits into float32


def elu(x: Any) -> Any:
    """ELU, x above 0 and eˣ − 1 below."""
    xp = array_namespace(x)
    return xp.maximum(x, 0) + xp.exp(xp.minimum(x, 0)) - 1


def leaky_relu(x: Any) -> Any:
    """Leaky ReLU with a slope of 0.01 below 0."""
    return array_namespace(x).maximum(x, 0.01 * x)


def tanh(x: Any) -> Any:
    return array_namespace(x).tanh(x)


ACTIVATIONS = {
    "relu": relu,
    "gelu": gelu,
    "mish": mish,
    "silu": silu,
    "elu": elu,
    "leaky_relu": leaky_relu,
    "tanh": tanh,
}


def layer_norm(x: Any, weight: np.ndarray, bias: np.ndarray, eps: float) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / array_namespace(x).sqrt((centered * centered).mean(-1, keepdims=True) + eps) * weight + bias


def mlp(arrays: Arrays, settings: Settings, x: Any, prefix: str = "") -> Any:
    """Apply an MLP: Linear → activation (→ LayerNorm) …, Linear.

    Args:
        arrays: The weights. Weights [members, in, out] define an ensemble with output [members, …, out].
        settings: The activation and the epsilon of LayerNorm.
        x: The input, or a tuple of inputs that are concatenated. Their leading axes are broadcast, so an input shared
            by many rows is multiplied only once.
        prefix: The prefix of the network's names in `arrays`.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    axes = max(part.ndim for part in inputs) - 1  # leading axes of the inputs

    def get(name: str, own_axes: int) -> np.ndarray:
        """Return an array. An ensemble's array gets axes of size 1 after the first, to broadcast with the inputs."""
        array = arrays[f"{prefix}{name}"]
        if array.ndim == own_axes:
            return array
        return array.reshape(array.shape[0], *(1,) * (axes + 1 - own_axes), *array.shape[1:])

    activation = ACTIVATIONS[settings["activation"]]
    x = linear(inputs, get("layers.0.weight", 2), get("layers.0.bias", 1))
    i = 0
    while f"{prefix}layers.{i + 1}.weight" in arrays:
        x = activation(x)
        if f"{prefix}norms.{i}.weight" in arrays:
            x = layer_norm(x, get(f"norms.{i}.weight", 1), get(f"norms.{i}.bias", 1), settings["layer_norm_eps"])
        i += 1
        x = x @ get(f"layers.{i}.weight", 2) + get(f"layers.{i}.bias", 1)
    return x


def linear(inputs: tuple[Any, ...], weight: np.ndarray, bias: np.ndarray) -> Any:
    """Return [x, y, …]·W + b, computed as x·W_x + y·W_y + … + b."""
    if len(inputs) == 1:
        return inputs[0] @ weight + bias
    total: Any = bias
    first = 0
    for x in inputs:
        last = first + x.shape[-1]
        total = total + x @ weight[..., first:last, :]
        first = last
    return total


# ---------------------------------------------------------------------------------------------------------------
# Kinds
# ---------------------------------------------------------------------------------------------------------------


class NoiseInput(NamedTuple):
    """A random input of a policy, "normal" (N(0, 1)) or "gumbel". `None` in the shape stands for the batch size."""

    distribution: str
    shape: tuple[int | None, ...]

    def sample(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        shape = tuple(batch if size is None else size for size in self.shape)
        if self.distribution == "normal":
            return rng.standard_normal(shape, np.float32)
        return rng.gumbel(size=shape).astype(np.float32)


class Kind(NamedTuple):
    """A kind of policy: the functions that compute its actions, check its arrays and list its random inputs."""

    act: Callable[..., Any]
    """(arrays, settings, observations, *noise) → actions in [-1, 1]."""
    is_valid: Callable[[Arrays, Settings, int, int], bool]
    """(arrays, settings, observation size, action size) → whether the arrays and settings are consistent."""
    noise: Callable[[Arrays, Settings, int], dict[str, NoiseInput]] = lambda arrays, settings, obs: {}
    """(arrays, settings, observation size) → the random inputs by name, in the order in which `act` takes them."""
    logits: Callable[..., Any] | None = None
    """(arrays, settings, observations) → logits; `act` chooses the option with the largest logit."""


def sample_noise(
    draws: Mapping[str, NoiseInput], batch: int, rng: np.random.Generator | int | None
) -> list[np.ndarray]:
    """Sample the random inputs for a batch; an integer is a seed."""
    if not draws:  # creating a generator takes longer than evaluating a small network
        return []
    generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
    return [draw.sample(generator, batch) for draw in draws.values()]


def deterministic(arrays: Arrays, settings: Settings, observations: Any) -> Any:
    """Return tanh(MLP(s)): a deterministic policy, or the mean of a Gaussian one."""
    return array_namespace(observations).tanh(mlp(arrays, settings, observations))


def is_valid_deterministic(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    return is_valid_mlp(arrays, settings, obs, act)


def flow(arrays: Arrays, settings: Settings, observations: Any, z: Any) -> Any:
    """Return clip(MLP(s, z), −1, 1) with z ~ N(0, I) per state: FQL's one-step policy."""
    return clip_to_unit(mlp(arrays, settings, (observations, z)))


def flow_noise(arrays: Arrays, settings: Settings, obs: int) -> dict[str, NoiseInput]:
    return {"z": NoiseInput("normal", (None, settings["latent_size"]))}


def is_valid_flow(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    latent = settings["latent_size"]
    return is_positive_int(latent) and is_valid_mlp(arrays, settings, obs + latent, act)


def diffusion(arrays: Arrays, settings: Settings, observations: Any, noise: Any, gumbel: Any) -> Any:
    """Return Diffusion-QL's actions: one of several candidates per state, drawn from the softmax of min target Q."""
    xp, states = array_namespace(observations), observations[:, None]
    actions = denoise(arrays, settings, states, noise[0], [noise[t + 1] for t in range(diffusion_steps(settings))])
    q = mlp(arrays, settings, (states, actions), "critics.").min(0)[..., 0]
    # argmax(q + Gumbel noise) is a draw from softmax(q).
    chosen = xp.argmax(q + gumbel, axis=1)
    return xp.take_along_axis(actions, chosen[:, None, None], axis=1)[:, 0]


def diffusion_noise(arrays: Arrays, settings: Settings, obs: int) -> dict[str, NoiseInput]:
    candidates = settings["candidates"]
    act = arrays["noise.layers.0.weight"].shape[0] - time_size(arrays) - obs
    return {
        "noise": NoiseInput("normal", (diffusion_steps(settings) + 1, None, candidates, act)),
        "gumbel": NoiseInput("gumbel", (None, candidates)),
    }


def is_valid_diffusion(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    time, candidates = time_size(arrays), settings["candidates"]
    coefficients = [settings[name] for name in COEFFICIENTS]
    return (
        is_positive_int(candidates)
        and all(isinstance(c, list) and 0 < len(c) == len(coefficients[0]) for c in coefficients)
        and all(isinstance(x, float) and 0 <= x < math.inf for c in coefficients for x in c)
        and min(settings["alphas_cumprod"]) > 0
        and time >= 4
        and time % 2 == 0
        and is_valid_mlp(arrays, settings, time, time, "time.")
        and is_valid_mlp(arrays, settings, act + time + obs, act, "noise.")
        and is_valid_mlp(arrays, settings, obs + act, 1, "critics.", ensemble=True)
        and candidates * (len(coefficients[0]) + 1) * act < MAX_SAMPLE
        and candidates * max(array.size // array.shape[-2] for array in arrays.values() if array.ndim > 1) < MAX_SAMPLE
    )


COEFFICIENTS = ("alphas_cumprod", "posterior_std", "posterior_mean_coef1", "posterior_mean_coef2")


def diffusion_steps(settings: Settings) -> int:
    return len(settings["alphas_cumprod"])


def time_size(arrays: Arrays) -> int:
    """Return the size of the embedding of a diffusion step."""
    return len(arrays["time.layers.0.weight"])


def embed_steps(arrays: Arrays, settings: Settings) -> np.ndarray:
    """Return the embedding of every diffusion step, [n, time]. It depends on the weights only."""
    n, half = diffusion_steps(settings), time_size(arrays) // 2
    frequencies = np.exp(-np.arange(half) * math.log(10_000) / (half - 1))
    angles = (np.arange(n)[:, None] * frequencies).astype(np.float32)
    embedding: np.ndarray = mlp(arrays, settings, np.concatenate([np.sin(angles), np.cos(angles)], -1), "time.")
    return embedding


def denoise(arrays: Arrays, settings: Settings, observations: Any, x: Any, steps: Any) -> Any:
    """Denoise x into actions; `steps` holds the noise of each denoising step."""
    embedded = embed_steps(arrays, settings)
    for t, epsilon in zip(reversed(range(len(embedded))), steps, strict=True):
        predicted = mlp(arrays, settings, (x, embedded[t], observations), "noise.")
        kept = settings["alphas_cumprod"][t]
        x0 = clip_to_unit(math.sqrt(1 / kept) * x - math.sqrt(1 / kept - 1) * predicted)
        x = settings["posterior_mean_coef1"][t] * x0 + settings["posterior_mean_coef2"][t] * x
        x = x + settings["posterior_std"][t] * epsilon
    return clip_to_unit(x)


def clip_to_unit(x: Any) -> Any:
    xp = array_namespace(x)
    return xp.minimum(xp.maximum(x, -1.0), 1.0)


def categorical(arrays: Arrays, settings: Settings, observations: Any) -> Any:
    """Return 1 for the chosen option of each discrete factor and −1 for its other options; tanh(x) if continuous.

    The chosen option has the largest logit among the allowed ones. If no option is allowed, all columns are −1.
    """
    logits, sizes = categorical_logits(arrays, settings, observations), settings["factors"]
    xp = array_namespace(logits)
    if settings["joint"]:  # one logit per combination of options
        options = joint_options(sizes)
        return largest(logits, forbidden_options(settings, observations, options)) @ (2 * options) - 1
    forbidden = forbidden_options(settings, observations, np.eye(logits.shape[-1], dtype=np.float32))
    parts = [
        2 * largest(logits[:, block], None if forbidden is None else forbidden[:, block]) - 1
        if size
        else xp.tanh(logits[:, block])
        for size, block in zip(sizes, factor_slices(sizes), strict=True)
    ]
    return parts[0] if len(parts) == 1 else xp.concatenate(tuple(parts), axis=1)


def categorical_logits(arrays: Arrays, settings: Settings, observations: Any) -> Any:
    """Return MLP(s), averaged over the members of an ensemble, minus `FORBIDDEN` for masked options."""
    outputs = mlp(arrays, settings, observations)
    if outputs.ndim == 3:
        outputs = outputs.mean(0)
    options = joint_options(settings["factors"]) if settings["joint"] else np.eye(outputs.shape[-1], dtype=np.float32)
    forbidden = forbidden_options(settings, observations, options)
    return outputs if forbidden is None else outputs - FORBIDDEN * forbidden


def is_valid_categorical(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    sizes, masked, joint = settings["factors"], settings["masked"], settings["joint"]
    is_valid = isinstance(joint, bool) and are_valid_factors(sizes, masked) and len(masked) < obs
    if not is_valid or sum(max(size, 1) for size in sizes) != act or (joint and 0 in sizes):
        return False
    outputs = math.prod(sizes) if joint else act
    is_ensemble = arrays["layers.0.weight"].ndim == 3
    return outputs <= MAX_SAMPLE // act and is_valid_mlp(arrays, settings, obs, outputs, ensemble=is_ensemble)


def program(arrays: Arrays, settings: Settings, observations: Any, *noise: Any) -> Any:
    """Run a program, which is a policy traced from a function (see `aspc.policy_programs`)."""
    return run_program(arrays, settings["steps"], (observations, *noise))


def program_noise(arrays: Arrays, settings: Settings, obs: int) -> dict[str, NoiseInput]:
    return {name: NoiseInput(draw["distribution"], tuple(draw["shape"])) for name, draw in settings["noise"].items()}


def is_valid_program(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    """Return whether the program maps two observations to two actions and no result exceeds the size limit."""
    draws = program_noise(arrays, settings, obs).values()
    shapes = [(2, obs), *(tuple(2 if n is None else n for n in draw.shape) for draw in draws)]
    is_limited = len(settings["steps"]) <= MAX_STEPS and max(map(math.prod, shapes)) <= MAX_RESULT
    if not is_limited or any(draw.distribution not in ("normal", "gumbel") for draw in draws):
        return False
    # Only the shapes of the arrays are used, because they have no values during tracing.
    zeros = {name: np.zeros(array.shape, np.float32) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        result = run_program(
            zeros, settings["steps"], [np.zeros(shape, np.float32) for shape in shapes], 2 * MAX_RESULT
        )
    return bool(result.shape == (2, act) and result.dtype.kind == "f")


KINDS: dict[str, Kind] = {
    "deterministic": Kind(deterministic, is_valid_deterministic),
    "flow": Kind(flow, is_valid_flow, flow_noise),
    "diffusion": Kind(diffusion, is_valid_diffusion, diffusion_noise),
    "program": Kind(program, is_valid_program, program_noise),
    "categorical": Kind(categorical, is_valid_categorical, logits=categorical_logits),
}


# ---------------------------------------------------------------------------------------------------------------
# The complete policy, from observations to actions in the units of the logs
# ---------------------------------------------------------------------------------------------------------------


def compute_actions(policy: Any, observations: Any, noise: Any) -> Any:
    """Compute actions [batch, act] in the units of the logs: normalize, apply the network, scale to the bounds.

    With a history, observations are stacked.
    """
    xp = array_namespace(observations)
    low, high = policy.action_low, policy.action_high
    mean, std = policy.observation_mean, policy.observation_std
    if policy.history.observations > 1:
        mean, std = stacked_statistics(policy)
    rows = (observations - mean) / std
    unit = KINDS[policy.kind].act(policy.arrays, policy.settings, rows, *noise)
    actions = low + (unit + 1) * (0.5 * (high - low))
    # Rescaling can exceed the bounds by a rounding error, which must not reach an actuator.
    return xp.minimum(xp.maximum(actions, low), high)


def compute_logits(policy: Any, observations: Any) -> Any:
    """Compute the logits, or raise KeyError if the policy has none."""
    logits = KINDS[policy.kind].logits
    if logits is None:
        raise KeyError(policy.kind)
    rows = (observations - policy.observation_mean) / policy.observation_std
    return logits(policy.arrays, policy.settings, rows)


def noise_draws(policy: Any) -> dict[str, NoiseInput]:
    """Return the random inputs of a policy; empty for a deterministic one."""
    size = len(policy.observation_mean)
    if policy.history.observations > 1:  # the common case, without a history, is kept fast
        size = policy.history.size(size, len(policy.action_low))
    return KINDS[policy.kind].noise(policy.arrays, policy.settings, size)


def stacked_statistics(policy: Any) -> tuple[Any, Any]:
    """Return the mean and standard deviation of stacked observations: 0 and 1 for actions, which are rescaled."""
    xp, history = array_namespace(policy.observation_mean), policy.history
    actions = history.size(0, len(policy.action_low))
    mean = xp.concatenate((*(policy.observation_mean,) * history.observations, np.zeros(actions, np.float32)), axis=-1)
    std = xp.concatenate((*(policy.observation_std,) * history.observations, np.ones(actions, np.float32)), axis=-1)
    return mean, std


# ---------------------------------------------------------------------------------------------------------------
# Checks of arrays and settings
# ---------------------------------------------------------------------------------------------------------------


def is_positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_valid_mlp(
    arrays: Arrays, settings: Settings, inputs: int, outputs: int, prefix: str = "", ensemble: bool = False
) -> bool:
    """Return whether the arrays form an MLP, or an ensemble of MLPs, with these input and output sizes."""
    lead = arrays[f"{prefix}layers.0.weight"].shape[:-2]
    if settings["activation"] not in ACTIVATIONS or len(lead) != int(ensemble) or 0 in lead:
        return False
    size, i = inputs, 0
    while f"{prefix}layers.{i}.weight" in arrays:
        weight, bias = arrays[f"{prefix}layers.{i}.weight"], arrays[f"{prefix}layers.{i}.bias"]
        width = weight.shape[-1]
        if width == 0 or weight.shape != (*lead, size, width) or bias.shape != (*lead, width):
            return False
        if f"{prefix}norms.{i}.weight" in arrays:
            norms = [arrays[f"{prefix}norms.{i}.{part}"].shape for part in ("weight", "bias")]
            eps = settings["layer_norm_eps"]
            if norms != [bias.shape] * 2 or not isinstance(eps, float) or not 0 < eps < 1:
                return False
        size, i = width, i + 1
    return size == outputs
