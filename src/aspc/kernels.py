"""An MLP as two GPU kernels: one for the forward pass, one for backpropagation. This module has more than 400 lines
because the two kernels share their memory layout and helpers.

XLA runs a layer as a matrix product, a normalization and element-wise operations: four kernels forward and seven
backward, each of which writes its activations to memory for the next to read. Training a few runs executes a long chain
of such small kernels; training many runs is bound by memory traffic. Here each program of the grid takes a tile of
the batch's rows through the whole network. Only what the backward pass needs is written: the normalized activations x̂
(without LayerNorm, the activations) and two numbers per row.

    forward, per layer:   u = h·W + b    z = relu(u)    x̂ = (z − μ)/σ    h = x̂·γ + β
    backward, per layer:  dx̂ = dh·γ    dz = (dx̂ − mean dx̂ − x̂·mean(dx̂·x̂))/σ    du = dz where z > 0    dh' = du·Wᵀ

XLA computes the gradients of the weights as products, dW = x̂ᵀ·du, and omits unused ones. The kernels compute products
in TF32; if a precision is configured, `XlaKernels` is used instead, which only changes how XLA differentiates a
product.

The training loop enables kernels with `fused`, and `apply_mlp` uses them for supported networks; all other networks run
as plain JAX. The kernels support reverse mode, and forward mode for losses in which the networks are constant. To
differentiate weights or inputs in forward mode, trace under `jvp_compatible_networks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

MAX_OUTPUTS = 64  # outputs of a fused network; the kernel computes each output as a separate sum


class Tiles(NamedTuple):
    """The tiling of a kernel: batch rows per program, depth of a slice of a matrix product, warps, pipeline stages."""

    rows: int = 16
    depth: int = 32
    warps: int = 4
    stages: int = 4
    interpret: bool = False
    """Run as ordinary JAX, for tests without a GPU."""


class XlaKernels(NamedTuple):
    """XLA's kernels, with weight gradients computed as products that need no transpose (see `_linear`)."""


KernelChoice = Tiles | XlaKernels
_enabled: list[KernelChoice | None] = [None]


@contextmanager
def fused(choice: KernelChoice | None) -> Iterator[None]:
    """Use these kernels for networks traced inside the block; None selects plain JAX."""
    _enabled.append(choice)
    try:
        yield
    finally:
        _enabled.pop()


def jvp_compatible_networks() -> AbstractContextManager[None]:
    """Use plain JAX for networks traced inside the block, so that `jax.jvp` can differentiate weights and inputs.

    The fused kernels do not support this derivative.
    """
    return fused(None)


def default_kernels(runs: int) -> KernelChoice | None:
    """Return the kernels that ran fastest on an H200 for this number of runs at the configured precision."""
    if jax.default_backend() != "gpu":
        return None
    if jax.config.values["jax_default_matmul_precision"]:  # the fused kernels compute products in TF32
        return XlaKernels()
    return Tiles() if runs < 16 else Tiles(rows=32, stages=3)


class Layers(NamedTuple):
    """The arrays of an MLP: L + 1 weights and biases, and L scales and offsets of LayerNorms (or none)."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    scales: tuple[Array, ...]
    offsets: tuple[Array, ...]


class KernelConfig(NamedTuple):
    """The static configuration of a kernel."""

    tiles: Tiles
    eps: float
    member: int | None = None
    """The network's index if `Layers` is an ensemble. Copying its arrays would take longer than computing a layer."""

    def own(self, layers: Layers) -> Layers:
        """Return the arrays of the selected member; without an ensemble, all arrays."""
        return layers if self.member is None else jax.tree.map(lambda array: array[self.member], layers)


# ---------------------------------------------------------------------------------------------------------------
# Dispatch
# ---------------------------------------------------------------------------------------------------------------


def apply_mlp(
    layers: Layers,
    x: Float[Array, "*batch in"],
    activation: Callable[[Array], Array],
    *,
    eps: float,
    member: int | None,
    plain: Callable[[Array], Array],
) -> Float[Array, "*batch out"]:
    """Compute an MLP with the enabled kernels if they support it, otherwise with `plain`."""
    tiles = _fitting_tiles(layers, x, activation)
    return plain(x) if tiles is None else mlp(KernelConfig(tiles, eps, member), layers, x)


def apply_member(apply: Callable[[Any], Array], ensemble: Any, member: int) -> Array:
    """Compute one member of an ensemble of networks that `apply_mlp` does not support."""
    if isinstance(_enabled[-1], XlaKernels):
        # Running the other members in parallel is faster than first copying the weights of this one.
        outputs: Array = jax.vmap(apply)(ensemble)
        return outputs[member]
    return apply(jax.tree.map(lambda leaf: leaf[member], ensemble))


def linear(
    x: Float[Array, "*batch in"], weight: Float[Array, "in out"], bias: Float[Array, "out"]
) -> Float[Array, "*batch out"]:
    """Compute x·W + b."""
    if _enabled[-1] is None or x.ndim != 2:
        return x @ weight + bias
    return _linear(x, weight, bias)


def _fitting_tiles(layers: Layers, x: Array, activation: Callable[[Array], Array]) -> Tiles | None:
    """Return the enabled tiles if the kernels support the network: ReLU, equal hidden widths that are powers of two."""
    tiles = _enabled[-1]
    hidden = {bias.shape[-1] for bias in layers.biases[:-1]}
    if not isinstance(tiles, Tiles) or activation is not jax.nn.relu or len(hidden) != 1 or x.ndim != 2:
        return None
    (width,) = hidden
    regular = width >= tiles.depth and width & (width - 1) == 0 and len(x) % tiles.rows == 0
    regular = regular and layers.biases[-1].shape[-1] <= MAX_OUTPUTS
    same = x.dtype == layers.biases[0].dtype and (tiles.interpret or x.dtype == jnp.float32)
    return tiles if regular and same else None


# ---------------------------------------------------------------------------------------------------------------
# Pieces of both kernels
# ---------------------------------------------------------------------------------------------------------------


def _pallas() -> tuple[Any, Any]:
    """Import Pallas and its Triton backend on demand, since most programs do not need them."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    return pallas, triton


def _padded(n: int) -> int:
    """Return the smallest power of two that is at least n and that a matrix unit accepts."""
    return max(16, 1 << (n - 1).bit_length())


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # JAX's own


def _load(reference: Any, **options: Any) -> Array:
    _, triton = _pallas()

    loaded: Array = triton.load(reference, **options)
    return loaded


def _columns(ref: Any, rows: Any, first: int, width: int, total: int) -> Array:
    """Load ref[rows, first : first + width], with zeros beyond `total` columns."""
    columns = first + jnp.arange(width)
    at = ref.at[rows[:, None], columns[None, :]]
    if first + width <= total:
        return _load(at)
    return _load(at, mask=(columns < total)[None, :] & (rows >= 0)[:, None], other=0.0)


def _rows(ref: Any, first: int, height: int, total: int, width: int) -> Array:
    """Load ref[first : first + height, :width], with zeros beyond `total` rows."""
    rows, columns = first + jnp.arange(height), jnp.arange(width)
    at = ref.at[rows[:, None], columns[None, :]]
    if first + height <= total:
        return _load(at)
    return _load(at, mask=(rows < total)[:, None] & (columns >= 0)[None, :], other=0.0)


def _dot(a: Array, b: Array, transposed: bool = False) -> Array:
    """Compute a·b (or a·bᵀ) at JAX's default precision, which is TF32 here."""
    return jax.lax.dot_general(a, b, (((1,), (int(transposed),)), ((), ())), preferred_element_type=a.dtype)


def _barrier(tiles: Tiles) -> None:
    """Synchronize the threads of a program."""
    _, triton = _pallas()

    if not tiles.interpret:
        triton.debug_barrier()


def _call(
    config: KernelConfig, kernel: Any, layers: Layers, others: Any, outputs: Any, programs: int, name: str
) -> Any:
    """Run `kernel(layers, others, outputs)` on the grid, with references in place of arrays."""
    pl, triton = _pallas()

    def of_member(array: Any) -> Any:
        here = (config.member,) + (0,) * (array.ndim - 1)
        return pl.BlockSpec((None, *array.shape[1:]), lambda _: here)

    whole: Any = jax.tree.map(lambda _: pl.BlockSpec(), (layers, others))
    specs = whole if config.member is None else (jax.tree.map(of_member, layers), whole[1])
    structure, tiles = jax.tree.structure((layers, others, outputs)), config.tiles
    found = pl.pallas_call(
        lambda *references: kernel(*jax.tree.unflatten(structure, references)),
        out_shape=jax.tree.leaves(outputs),
        in_specs=jax.tree.leaves(specs, is_leaf=lambda spec: isinstance(spec, pl.BlockSpec)),
        grid=(programs,),
        compiler_params=triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=tiles.interpret,
        name=name,
    )(*jax.tree.leaves((layers, others)))
    return jax.tree.unflatten(jax.tree.structure(outputs), found)


# ---------------------------------------------------------------------------------------------------------------
# Forward
# ---------------------------------------------------------------------------------------------------------------


class Residuals(NamedTuple):
    """The residuals of the forward pass, per layer: x̂, and 1/σ and −μ/σ per row.

    z > 0 exactly where x̂ > −μ/σ, so z itself is not kept.
    """

    normalized: tuple[Float[Array, "batch hidden"], ...]
    inverse_std: tuple[Float[Array, "batch"], ...]
    threshold: tuple[Float[Array, "batch"], ...]


def _normalize(config: KernelConfig, z: Array) -> tuple[Array, Array, Array]:
    """Compute x̂, 1/σ and −μ/σ per row. With σ² = E[z²] − μ², one pass over z suffices."""
    mean, square = z.sum(1) / z.shape[1], (z * z).sum(1) / z.shape[1]
    inverse = jax.lax.rsqrt(square - mean * mean + config.eps)
    threshold = -mean * inverse
    return z * inverse[:, None] + threshold[:, None], inverse, threshold


def _forward_kernel(
    config: KernelConfig, keep: bool, layers: Layers, x_ref: Any, out_ref: Any, kept: Residuals
) -> None:
    """Compute all layers. Without `keep`, no residuals are stored; one buffer passes the tile between layers."""
    pl, _ = _pallas()

    tiles = config.tiles
    norm, depth, hidden = bool(layers.scales), len(layers.biases) - 1, layers.biases[0].shape[0]
    first = pl.program_id(0) * tiles.rows
    rows, span = first + jnp.arange(tiles.rows), pl.ds(first, tiles.rows)
    fan_in, fan_out = x_ref.shape[1], out_ref.shape[1]

    slice_in = min(_padded(fan_in), tiles.depth)
    u = jnp.broadcast_to(layers.biases[0][:][None, :], (tiles.rows, hidden))
    for k in range(0, fan_in, slice_in):
        part = _columns(x_ref, rows, k, slice_in, fan_in)
        u += _dot(part, _rows(layers.weights[0], k, slice_in, fan_in, hidden))
    for i in range(depth):
        h = jnp.maximum(u, 0.0)
        if norm:
            h, inverse, threshold = _normalize(config, h)
            if keep:
                kept.inverse_std[i][span] = inverse
                kept.threshold[i][span] = threshold
        buffer = kept.normalized[i if keep else 0]
        if i and not keep:
            _barrier(tiles)  # the buffer has been read
        if keep or i + 1 < depth:
            buffer[span, :] = h
        if i + 1 < depth:
            _barrier(tiles)  # the next layer reads the tile in slices from the buffer, since registers cannot be sliced

            def slice_of(k: Array, u: Array, i: int = i, buffer: Any = buffer) -> Array:
                part = pl.ds(k * tiles.depth, tiles.depth)
                h = buffer[span, part]
                if norm:
                    h = h * layers.scales[i][part][None, :] + layers.offsets[i][part][None, :]
                return u + _dot(h, layers.weights[i + 1][part, :])

            u = jnp.broadcast_to(layers.biases[i + 1][:][None, :], (tiles.rows, hidden))
            u = jax.lax.fori_loop(0, hidden // tiles.depth, slice_of, u)
    if norm:
        h = h * layers.scales[-1][:][None, :] + layers.offsets[-1][:][None, :]
    for j in range(fan_out):
        out_ref[span, j] = (h * _last_weight(layers, j)[None, :]).sum(1) + layers.biases[-1][j]


def _last_weight(layers: Layers, j: int) -> Array:
    """Load the last layer's weights of output j. There are few outputs, so each is computed as a separate sum."""
    return _load(layers.weights[-1].at[jnp.arange(layers.weights[-1].shape[0]), j])


@functools.partial(jax.jit, static_argnums=(0, 3))  # jitted separately, so that equal kernels are compiled once
def _forward(config: KernelConfig, layers: Layers, x: Array, keep: bool) -> tuple[Array, Residuals]:
    batch, norm, depth = len(x), bool(layers.scales), len(layers.biases) - 1
    tile = _shape((batch, layers.biases[0].shape[-1]), x.dtype)
    row = _shape((batch,), x.dtype)
    rows = (row,) * depth if norm and keep else ()
    kept = Residuals((tile,) * (depth if keep else 1), rows, rows)
    out = _shape((batch, layers.biases[-1].shape[-1]), x.dtype)

    def kernel(layers: Layers, x: Any, outputs: tuple[Any, Residuals]) -> None:
        _forward_kernel(config, keep, layers, x, *outputs)

    found: tuple[Array, Residuals] = _call(
        config, kernel, layers, x, (out, kept), batch // config.tiles.rows, "mlp_forward"
    )
    return found


# ---------------------------------------------------------------------------------------------------------------
# Backward
# ---------------------------------------------------------------------------------------------------------------


class BackwardOutputs(NamedTuple):
    """The results of the backward kernel per layer: du, and each tile's partial sums of the gradients of b, γ and β."""

    du: tuple[Float[Array, "batch hidden"], ...]
    bias: tuple[Float[Array, "programs hidden"], ...]
    scale: tuple[Float[Array, "programs hidden"], ...]
    offset: tuple[Float[Array, "programs hidden"], ...]


def _backward_kernel(config: KernelConfig, layers: Layers, kept: Residuals, d_out: Any, back: BackwardOutputs) -> None:
    pl, _ = _pallas()

    tiles = config.tiles
    norm, depth, hidden = bool(layers.scales), len(layers.biases) - 1, layers.biases[0].shape[0]
    fan_out = d_out.shape[1]
    program = pl.program_id(0)
    first = program * tiles.rows
    span = pl.ds(first, tiles.rows)

    dh = sum(d_out[span, j][:, None] * _last_weight(layers, j)[None, :] for j in range(fan_out))
    for i in reversed(range(depth)):
        h = kept.normalized[i][span, :]
        active = h > (kept.threshold[i][span][:, None] if norm else 0.0)
        if norm:
            back.scale[i][program, :] = (dh * h).sum(0)
            back.offset[i][program, :] = dh.sum(0)
            dh = dh * layers.scales[i][:][None, :]
            dz = dh - (dh.sum(1) / hidden)[:, None] - h * ((dh * h).sum(1) / hidden)[:, None]
            dh = dz * kept.inverse_std[i][span][:, None]
        du = jnp.where(active, dh, 0.0)
        back.bias[i][program, :] = du.sum(0)
        back.du[i][span, :] = du
        if i:
            _barrier(tiles)

            def slice_of(k: Array, dh: Array, i: int = i) -> Array:
                part = pl.ds(k * tiles.depth, tiles.depth)
                return dh + _dot(back.du[i][span, part], layers.weights[i][:, part], transposed=True)

            dh = jax.lax.fori_loop(0, hidden // tiles.depth, slice_of, jnp.zeros_like(dh))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def _backward(config: KernelConfig, layers: Layers, kept: Residuals, d_out: Array) -> BackwardOutputs:
    batch, depth, norm = len(d_out), len(layers.biases) - 1, bool(layers.scales)
    hidden, programs = layers.biases[0].shape[-1], batch // config.tiles.rows
    tiles: Any = (_shape((batch, hidden), d_out.dtype),) * depth
    sums: Any = (_shape((programs, hidden), d_out.dtype),) * depth
    back = BackwardOutputs(tiles, sums, sums if norm else (), sums if norm else ())

    def kernel(layers: Layers, others: tuple[Residuals, Any], back: BackwardOutputs) -> None:
        _backward_kernel(config, layers, *others, back)

    found: BackwardOutputs = _call(config, kernel, layers, (kept, d_out), back, programs, "mlp_backward")
    return found


def _backward_tangent(config: KernelConfig, primals: Any, tangents: Any) -> tuple[BackwardOutputs, BackwardOutputs]:
    """Differentiate with respect to d_out, in which the backward pass is linear.

    A scale that only weights loss terms enters through `d_out` alone.
    """
    *network, d_out = primals
    *network_tangents, d_out_tangent = tangents
    if not all(isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(network_tangents)):
        raise TypeError("Fused networks do not support this forward mode. Trace them under jvp_compatible_networks().")
    return _backward(config, *network, d_out), _backward(config, *network, d_out_tangent)


_backward.defjvp(_backward_tangent, symbolic_zeros=True)


# ---------------------------------------------------------------------------------------------------------------
# The functions
# ---------------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def mlp(config: KernelConfig, layers: Layers, x: Float[Array, "batch in"]) -> Float[Array, "batch out"]:
    """Compute Linear → ReLU (→ LayerNorm), L times, then Linear."""
    out: Array = _forward(config, layers, x, False)[0]
    return out


def _mlp_forward(config: KernelConfig, layers: Layers, x: Array) -> tuple[Array, Any]:
    out, kept = _forward(config, layers, x, True)
    return out, (layers, x, kept)


def _mlp_backward(config: KernelConfig, residuals: Any, d_out: Array) -> tuple[Layers, Array]:
    all_layers, x, kept = residuals
    back = _backward(config, all_layers, kept, d_out)
    layers = config.own(all_layers)
    biases = (*(share.sum(0) for share in back.bias), d_out.sum(0))
    # The networks of an ensemble share x. For a product with a shared x, XLA would transpose du; a copy of x avoids
    # this.
    own_x = x + 0.0 * d_out[:, :1]
    weights = [own_x.T @ back.du[0]]
    for i, du in enumerate((*back.du[1:], d_out)):
        weights.append(_affine(layers, i, kept.normalized[i].T @ du, biases[i + 1]))
    scales, offsets = (tuple(share.sum(0) for share in shares) for shares in (back.scale, back.offset))
    gradients = Layers(tuple(weights), biases, scales, offsets)
    if config.member is not None:
        gradients = jax.tree.map(lambda a, g: jnp.zeros_like(a).at[config.member].set(g), all_layers, gradients)
    return gradients, back.du[0] @ layers.weights[0].T


def _affine(layers: Layers, i: int, product: Array, bias: Array) -> Array:
    """Compute hᵀ·du from x̂ᵀ·du, where h = x̂·γ + β: γ scales the rows, and β multiplies db, the sum of du."""
    if not layers.scales:
        return product
    return layers.scales[i][:, None] * product + layers.offsets[i][:, None] * bias[None, :]


mlp.defvjp(_mlp_forward, _mlp_backward)


@jax.custom_vjp
def _linear(
    x: Float[Array, "batch in"], weight: Float[Array, "in out"], bias: Float[Array, "out"]
) -> Float[Array, "batch out"]:
    """Compute x·W + b. JAX would differentiate it as dW = (duᵀ·x)ᵀ, whose transpose is an extra GPU kernel."""
    return x @ weight + bias


def _linear_forward(x: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return _linear(x, weight, bias), (x, weight)


def _linear_backward(residuals: tuple[Array, Array], du: Array) -> tuple[Array, Array, Array]:
    x, weight = residuals
    return du @ weight.T, x.T @ du, du.sum(0)


_linear.defvjp(_linear_forward, _linear_backward)
