"""How each kind of policy acts: (arrays, settings, normalised observations, noise) → actions in ±1.

The arrays are those that an algorithm's `policy(state)` exports: an MLP is `layers.0.weight` [in, out],
`layers.0.bias`, … and, where it has LayerNorm, `norms.0.weight`, …, each with a prefix where there are several.

This is the only place that says how a policy acts. With NumPy arrays it computes; with the arrays of another library
(JAX), or with the symbols of an ONNX graph, the same lines write the program that `aspc export` leaves behind. So it
needs nothing but NumPy, and a policy exported as NumPy carries this very file with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]

LARGEST_SAMPLE = 10_000_000  # numbers that acting on one observation may draw or hold at a time


def namespace(x: Any) -> Any:
    """The module with the functions for such an array: NumPy, or the library that the array belongs to."""
    return np if isinstance(x, np.ndarray) else x.__array_namespace__()


# ---------------------------------------------------------------------------------------------------------------
# Networks
# ---------------------------------------------------------------------------------------------------------------


def relu(x: Any) -> Any:
    return namespace(x).maximum(x, 0)


def gelu(x: Any) -> Any:
    """The tanh approximation."""
    return 0.5 * x * (1 + namespace(x).tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def mish(x: Any) -> Any:
    """x·tanh(log(1 + eˣ)) with one exponential: tanh(log(1 + e)) = n/(n + 2), n = e·(e + 2)."""
    xp = namespace(x)
    e = xp.exp(xp.minimum(x, 20.0))  # above 20 the factor is 1 in float32
    n = e * (e + 2)
    return x * (n / (n + 2))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "mish": mish}


def layer_norm(x: Any, weight: np.ndarray, bias: np.ndarray, eps: float) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / namespace(x).sqrt((centred * centred).mean(-1, keepdims=True) + eps) * weight + bias


def mlp(arrays: Arrays, settings: Settings, x: Any, prefix: str = "") -> Any:
    """Linear → activation (→ LayerNorm) …, Linear. Weights [members, in, out] are an ensemble: [members, …, out].

    `x` may be a tuple of inputs, which stand side by side. Their leading axes need only broadcast: what is the same
    for many rows is multiplied once.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    axes = max(part.ndim for part in inputs) - 1  # that a member's numbers have besides their own

    def get(name: str, own_axes: int) -> np.ndarray:
        """An array; an ensemble's with axes of 1 after its members, to go with the inputs' leading axes."""
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
    """[x, y, …]·W + b as x·W_x + y·W_y + … + b."""
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
# The kinds
# ---------------------------------------------------------------------------------------------------------------


class Draw(NamedTuple):
    """Random numbers that a policy takes as an input: "normal" is N(0, 1). `None` in the shape stands for the batch."""

    distribution: str
    shape: tuple[int | None, ...]

    def sample(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        shape = tuple(batch if size is None else size for size in self.shape)
        if self.distribution == "normal":
            return rng.standard_normal(shape, np.float32)
        return rng.gumbel(size=shape).astype(np.float32)


class Kind(NamedTuple):
    """A kind of policy."""

    act: Callable[..., Any]
    """(arrays, settings, observations, *noise) → actions in ±1."""
    check: Callable[[Arrays, Settings, int, int], bool]
    """Whether the arrays fit together and the settings are sound; nothing is computed with them."""
    noise: Callable[[Arrays, Settings, int], dict[str, Draw]] = lambda arrays, settings, obs: {}
    """The random inputs, by name and in the order in which `act` takes them; depends on the size of an observation."""


def sample(draws: Mapping[str, Draw], batch: int, rng: np.random.Generator | int | None) -> list[np.ndarray]:
    """The random inputs for a batch; an integer is a seed."""
    if not draws:  # a generator takes longer to make than a small network to act
        return []
    generator = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
    return [draw.sample(generator, batch) for draw in draws.values()]


def deterministic(arrays: Arrays, settings: Settings, observations: Any) -> Any:
    """tanh(MLP(s)); of a Gaussian policy, its mean."""
    return namespace(observations).tanh(mlp(arrays, settings, observations))


def check_deterministic(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    return mlp_fits(arrays, settings, obs, act)


def flow(arrays: Arrays, settings: Settings, observations: Any, z: Any) -> Any:
    """clip(MLP(s, z), ±1) with z ~ N(0, 1) for each state: FQL's one-step policy."""
    return clip_to_unit(mlp(arrays, settings, (observations, z)))


def flow_noise(arrays: Arrays, settings: Settings, obs: int) -> dict[str, Draw]:
    return {"z": Draw("normal", (None, settings["latent_size"]))}


def check_flow(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    latent = settings["latent_size"]
    return is_count(latent) and mlp_fits(arrays, settings, obs + latent, act)


def diffusion(arrays: Arrays, settings: Settings, observations: Any, noise: Any, gumbel: Any) -> Any:
    """Diffusion-QL: several candidates a state, one of them drawn with the softmax of the smaller target Q."""
    xp, states = namespace(observations), observations[:, None]
    actions = denoise(arrays, settings, states, noise[0], [noise[t + 1] for t in range(diffusion_steps(settings))])
    q = mlp(arrays, settings, (states, actions), "critics.").min(0)[..., 0]
    # argmax(q + Gumbel noise) is a draw from softmax(q).
    chosen = xp.argmax(q + gumbel, axis=1)
    return xp.take_along_axis(actions, chosen[:, None, None], axis=1)[:, 0]


def diffusion_noise(arrays: Arrays, settings: Settings, obs: int) -> dict[str, Draw]:
    candidates = settings["candidates"]
    act = arrays["noise.layers.0.weight"].shape[0] - time_size(arrays) - obs
    return {
        "noise": Draw("normal", (diffusion_steps(settings) + 1, None, candidates, act)),
        "gumbel": Draw("gumbel", (None, candidates)),
    }


def check_diffusion(arrays: Arrays, settings: Settings, obs: int, act: int) -> bool:
    time, candidates = time_size(arrays), settings["candidates"]
    coefficients = [settings[name] for name in COEFFICIENTS]
    return (
        is_count(candidates)
        and all(isinstance(c, list) and 0 < len(c) == len(coefficients[0]) for c in coefficients)
        and all(isinstance(x, float) and 0 <= x < math.inf for c in coefficients for x in c)
        and min(settings["alphas_cumprod"]) > 0
        and time >= 4
        and time % 2 == 0
        and mlp_fits(arrays, settings, time, time, "time.")
        and mlp_fits(arrays, settings, act + time + obs, act, "noise.")
        and mlp_fits(arrays, settings, obs + act, 1, "critics.", ensemble=True)
        and candidates * (len(coefficients[0]) + 1) * act < LARGEST_SAMPLE
        and candidates * max(array.size // array.shape[-2] for array in arrays.values() if array.ndim > 1)
        < LARGEST_SAMPLE
    )


COEFFICIENTS = ("alphas_cumprod", "posterior_std", "posterior_mean_coef1", "posterior_mean_coef2")


def diffusion_steps(settings: Settings) -> int:
    return len(settings["alphas_cumprod"])


def time_size(arrays: Arrays) -> int:
    """Size of the embedding of the diffusion step."""
    return arrays["time.layers.0.weight"].shape[0]


def embedded_steps(arrays: Arrays, settings: Settings) -> np.ndarray:
    """The embedding of every diffusion step [n, time]: it depends on weights alone."""
    n, half = diffusion_steps(settings), time_size(arrays) // 2
    frequencies = np.exp(-np.arange(half) * math.log(10_000) / (half - 1))
    angles = (np.arange(n)[:, None] * frequencies).astype(np.float32)
    return mlp(arrays, settings, np.concatenate([np.sin(angles), np.cos(angles)], -1), "time.")


def denoise(arrays: Arrays, settings: Settings, observations: Any, x: Any, steps: Any) -> Any:
    """Actions from noise x, with the noise `steps` of the n denoising steps."""
    embedded = embedded_steps(arrays, settings)
    for t, epsilon in zip(reversed(range(len(embedded))), steps, strict=True):
        predicted = mlp(arrays, settings, (x, embedded[t], observations), "noise.")
        kept = settings["alphas_cumprod"][t]
        x0 = clip_to_unit(math.sqrt(1 / kept) * x - math.sqrt(1 / kept - 1) * predicted)
        x = settings["posterior_mean_coef1"][t] * x0 + settings["posterior_mean_coef2"][t] * x
        x = x + settings["posterior_std"][t] * epsilon
    return clip_to_unit(x)


def clip_to_unit(x: Any) -> Any:
    xp = namespace(x)
    return xp.minimum(xp.maximum(x, -1.0), 1.0)


KINDS: dict[str, Kind] = {
    "deterministic": Kind(deterministic, check_deterministic),
    "flow": Kind(flow, check_flow, flow_noise),
    "diffusion": Kind(diffusion, check_diffusion, diffusion_noise),
}


# ---------------------------------------------------------------------------------------------------------------
# The whole policy: from what was observed to what is sent to the actuators
# ---------------------------------------------------------------------------------------------------------------


def whole_act(policy: Any, observations: Any, noise: Any) -> Any:
    """Actions [batch, act] in the units of the logs: normaliser, network, map from ±1 to the action bounds."""
    xp = namespace(observations)
    low, high = policy.action_low, policy.action_high
    rows = (observations - policy.observation_mean) / policy.observation_std
    unit = KINDS[policy.kind].act(policy.arrays, policy.settings, rows, *noise)
    actions = low + (unit + 1) * (0.5 * (high - low))
    # The map from ±1 can leave the bounds by a rounding error; the user's actuator should not see that.
    return xp.minimum(xp.maximum(actions, low), high)


def whole_noise(policy: Any) -> dict[str, Draw]:
    """The random inputs of a policy; none where it is deterministic."""
    return KINDS[policy.kind].noise(policy.arrays, policy.settings, len(policy.observation_mean))


# ---------------------------------------------------------------------------------------------------------------
# Observations by name
# ---------------------------------------------------------------------------------------------------------------


def in_order(names: Sequence[str], observations: Any, error: type[Exception] = ValueError) -> Any:
    """Observations whose numbers have names (a table, one of its rows, a dictionary, a list of such rows) in the order
    of a policy's `names`; without names, on either side, they are taken as they come. Names that lack one raise."""
    if isinstance(observations, np.ndarray):  # the usual case, and a fast one
        return observations
    if isinstance(observations, list | tuple) and not hasattr(observations, "_fields"):
        return [
            row if isinstance(row, float | int | np.generic) else as_numbers(_by_name(names, row, error))
            for row in observations
        ]
    return _by_name(names, observations, error)


def _by_name(names: Sequence[str], observations: Any, error: type[Exception]) -> Any:
    labels = _labels(observations)
    if not names and isinstance(observations, Mapping):
        raise error("This policy's log had no names of columns; give an array instead of a dictionary.")
    if not names or labels is None:
        return observations
    for name in names:
        if (found := labels.count(name)) != 1:
            wrong = f"has {name!r} {found} times" if found else f"lacks {name!r}"
            raise error(f"The observation {wrong}; this policy takes {', '.join(names)}, or an array in this order.")
    values = observations._asdict() if hasattr(type(observations), "_fields") else observations
    return np.stack([as_numbers(values[name]) for name in names], axis=-1)


def _labels(observations: Any) -> list[Any] | None:
    """What the columns of a table or the numbers of a row are called; None where they are only numbered. A tuple is a
    name of several levels."""
    if isinstance(observations, Mapping):
        return list(observations)
    # Of the class: a column may have such a name too. A list's `index` is a function.
    kinds = ("_fields", "column_names", "columns", "index")
    held = (getattr(observations, kind) for kind in kinds if hasattr(type(observations), kind))
    labels = list(next((labels for labels in held if not callable(labels)), ()))
    return labels if any(isinstance(label, str | tuple) for label in labels) else None


# ---------------------------------------------------------------------------------------------------------------
# Observations that are not numbers
# ---------------------------------------------------------------------------------------------------------------

ON_INVALID = ("raise", "hold", "nan")


def as_numbers(values: Any) -> np.ndarray:
    """Return values as float32. None and masked entries become NaN, numbers too large for float32 infinite."""
    if type(values) is np.ndarray and values.dtype == np.float32:  # the usual case, and a fast one
        return values
    with np.errstate(over="ignore"):
        if isinstance(values, np.ma.MaskedArray):
            return np.ma.filled(values.astype(np.float32), np.nan)
        return np.asarray(values, np.float32)


def checked_act(
    compute: Callable[[np.ndarray], Any],
    observations: Any,
    names: Sequence[str],
    size: int,
    on_invalid: str,
    held: dict[str, np.ndarray],
    error: type[Exception] = ValueError,
) -> np.ndarray:
    """Act on one observation [obs] or a batch [batch, obs], and decide what an observation without numbers gives.

    Args:
        compute: Rows of observations [batch, obs] → actions [batch, act].
        observations: An array, or a table, a row or a dictionary with the `names` of the log's columns.
        names: The log's columns, in the order of the numbers; may be empty.
        size: How many numbers an observation has.
        on_invalid: What an observation with NaN, infinity, None or a masked entry gives: "raise" an error, "hold" the
            last action of the same row, or a "nan" action.
        held: The last actions, kept between calls by "hold".
        error: The exception to raise.
    """
    if on_invalid not in ON_INVALID:
        raise error(f"on_invalid is one of {', '.join(ON_INVALID)}, not {on_invalid!r}.")
    try:
        is_plain = type(observations) is np.ndarray  # the usual case, and a fast one
        x = as_numbers(observations if is_plain else in_order(names, observations, error))
    except (TypeError, ValueError) as reason:
        if isinstance(reason, error):
            raise
        raise error(
            f"The observation is not made of numbers ({reason}); give {size} numbers, or rows of them."
        ) from reason
    if x.ndim not in (1, 2) or x.shape[-1] != size:
        raise error(
            f"This policy takes observations of {size} numbers, [{size}] or [batch, {size}], but got an array of "
            f"shape {x.shape}."
        )
    rows = x if x.ndim == 2 else x[None]
    is_number = np.isfinite(rows)
    if np.logical_and.reduce(is_number, axis=None):
        actions = compute(rows)
    else:
        if on_invalid == "raise":
            raise error(f"{_first_invalid(x, names)}; correct it, or choose on_invalid='hold' or 'nan'.")
        actions = np.array(compute(np.where(is_number, rows, np.float32(0))))
        invalid = ~is_number.all(axis=1)
        actions[invalid] = np.nan if on_invalid == "nan" else _held_actions(x, names, actions, invalid, held, error)
    if on_invalid == "hold":
        held["actions"] = np.array(actions)
    return actions if x.ndim == 2 else actions[0]


def _held_actions(
    x: np.ndarray,
    names: Sequence[str],
    actions: np.ndarray,
    invalid: np.ndarray,
    held: dict[str, np.ndarray],
    error: type[Exception],
) -> np.ndarray:
    """The last actions of the rows without numbers, or an error where there are none."""
    last = held.get("actions")
    if last is None:
        raise error(f"{_first_invalid(x, names)}, and there is no action to hold yet; start with a valid observation.")
    if last.shape != actions.shape:
        raise error(
            f"{_first_invalid(x, names)}, and its last action is unknown: the batch had {len(last)} rows before, now "
            f"{len(actions)}; keep the rows of a batch, or act on each with a policy of its own."
        )
    return last[invalid]


def _first_invalid(x: np.ndarray, names: Sequence[str]) -> str:
    """The first entry of an observation, or of a batch, that is not a number, in words."""
    at = [int(i) for i in np.argwhere(~np.isfinite(x))[0]]
    named = f" ({names[at[-1]]!r})" if at[-1] < len(names) else ""
    return f"{'observations' if x.ndim == 2 else 'observation'}{at}{named} is {x[tuple(at)]}"


def nan_where_invalid(actions: Any, observations: Any) -> Any:
    """Actions of a program that can neither raise nor remember: NaN where an observation has NaN or infinity.

    A network alone does not give that: tanh(inf) is 1, and some runtimes drop a NaN where they take a maximum.
    """
    return actions + (observations * 0.0).mean(-1, keepdims=True)


# ---------------------------------------------------------------------------------------------------------------
# Checks, before anything is computed
# ---------------------------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def mlp_fits(
    arrays: Arrays, settings: Settings, inputs: int, outputs: int, prefix: str = "", ensemble: bool = False
) -> bool:
    """Whether the arrays are an MLP (or an ensemble of them) of these sizes, each layer fitting the next."""
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
