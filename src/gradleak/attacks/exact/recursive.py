"""The input of a chain of convolutions, layer after layer from the last to the first."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.watched import Call, name_of, watched
from gradleak.attacks.parts.labels import count
from gradleak.calculus import one_thread
from gradleak.errors import Unsuited
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.types import Batch, Guess, Know, Observation

ROUNDING = 1e-7
"""How far a number of 32 bits is from what it stands for, relative to its size."""

ALONE = 1e-4
"""From which share of its length on a gradient of the last layer is not that of one example."""

FLAT = 1e-7
"""From how low a share of the largest singular value on a direction counts as open."""

DOUBT, MOST = 5.0, 16
"""Within how many errors of a bend an activation's slope is doubtful; of how many numbers both slopes are tried."""

ORDINARY = {"dilation": 1, "padding": 0, "stride": 1}
"""How a convolution reads unless told otherwise."""

LARGEST = 13_000
"""Inputs of a layer up to which the equations are solved here."""


@dataclass(frozen=True)
class Activation:
    """An increasing function of one number, with its inverse and its slope; values lie between `low` and `high`."""

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    low: float = -float("inf")
    high: float = float("inf")


ACTIVATIONS = (
    Activation(torch.sigmoid, torch.logit, lambda z: torch.sigmoid(z) * torch.sigmoid(-z), 0.0, 1.0),
    Activation(torch.tanh, torch.atanh, lambda z: 1 - torch.tanh(z).square(), -1.0, 1.0),
    Activation(F.softplus, lambda h: h + torch.log(-torch.expm1(-h)), torch.sigmoid, 0.0),
    Activation(F.elu, lambda h: torch.where(h < 0, torch.log1p(h), h), lambda z: z.clamp_max(0).exp(), -1.0),
    Activation(lambda z: z, lambda h: h, torch.ones_like),
)


def leaky(share: float) -> Activation:
    """Which lets through a share of what is below zero."""
    return Activation(lambda z: F.leaky_relu(z, share), lambda h: torch.where(h < 0, h / share, h),
                      lambda z: torch.where(z < 0, share, 1.0).to(z))


@dataclass(frozen=True)
class Layer:
    """A convolution, or a linear layer, as a linear map of numbered inputs.

    Output (o, l) is the sum over j of weight[o, j] * input[reads[l, j]]; reads is -1 where padding is read.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    gradient: Tensor
    shift: Tensor | None
    """The gradient of the bias."""
    reads: Tensor
    inputs: int
    before: Activation | None
    """What made the inputs out of the outputs of the layer before; none for the first layer."""

    def forward(self) -> scipy.sparse.csr_matrix:
        """Outputs (o, l) by inputs."""
        places, taps = self.reads.shape
        rows = torch.arange(len(self.weight) * places).reshape(-1, places, 1).expand(-1, -1, taps)
        return self._matrix(rows, self.weight[:, None, :].expand(-1, places, -1))

    def learned(self, delta: Tensor) -> scipy.sparse.csr_matrix:
        """The weight's gradient (o, j) by inputs, when the loss changes by delta (o x l) with the outputs."""
        places, taps = self.reads.shape
        rows = torch.arange(len(self.weight) * taps).reshape(-1, 1, taps).expand(-1, places, -1)
        return self._matrix(rows, delta[:, :, None].expand(-1, -1, taps))

    def _matrix(self, rows: Tensor, values: Tensor) -> scipy.sparse.csr_matrix:
        reads = self.reads.expand(rows.shape)
        real = reads >= 0
        entries = values[real].numpy(), (rows[real].numpy(), reads[real].numpy())
        return scipy.sparse.csr_matrix(entries, shape=(int(rows.max()) + 1, self.inputs))


@register("attack", "recursive")
@dataclass(frozen=True)
class Recursive:
    """One example, undefended, through convolutions and activations that can be undone.

    The last layer's gradient is (p - y) h^T: it gives the label and the layer's input h. Going down, what is known of a
    layer is its output, which the activation behind it gives back, and its weight's gradient, which is linear in
    its input once the loss's slope at its output is known. Both together are solved for the input by least squares,
    each equation weighed by how exact it is, as far as the layers above leave it.
    """

    needs = frozenset({Know.COUNT})
    evaluations = 1

    def guesses(self, seen: Observation, rng: Rng, start: Guess | None = None) -> Iterator[Guess]:
        with one_thread():
            yield self._solved(seen)

    def _solved(self, seen: Observation) -> Guess:
        layers = _chain(seen)
        head = layers[-1]
        x, delta, label, scale = _last(head)
        below = Solved(x, ROUNDING * x.abs(), 0.0, 1.0)
        slope, open_by = head.forward().T @ delta.numpy(), 1.0
        for layer, above in zip(reversed(layers[:-1]), reversed(layers[1:]), strict=True):
            assert above.before is not None
            below, delta = _through(layer, above.before, below, torch.from_numpy(slope), scale)
            slope, open_by = layer.forward().T @ delta.numpy(), min(open_by, below.open_by)
        like = next(iter(seen.params.values()))
        pixels = below.x.reshape(1, *seen.shape).to(like)
        return Guess(Batch(pixels.detach(), torch.tensor([label])), pixels.detach().clamp(0, 1), step=1,
                     notes={"label_confidence": 1.0, "smallest_singular_share": open_by})


def _chain(seen: Observation) -> list[Layer]:
    """The model as a chain of layers, or the reason why it is none."""
    if seen.vocabulary is not None:
        raise Unsuited("recursive reads images; the data are text")
    if count(seen) != 1:
        raise Unsuited(f"recursive solves for one example; this update is made of {count(seen)}")
    like = next(iter(seen.params.values()))
    level = torch.linspace(0.1, 0.9, math.prod(seen.shape)).reshape(1, *seen.shape).to(like)
    calls = [call for call in watched(seen, level.detach()) if call.kind != "scores"]
    names = [name_of(seen, call.weight) for call in calls]
    if len(set(names)) < len(names) or None in names:
        raise Unsuited("recursive needs every layer trained and used once: one step on one example")
    used = {*names, *(name_of(seen, call.bias) for call in calls)}
    if (strange := sorted(seen.params.keys() - used)) or not calls:
        raise Unsuited(f"recursive follows convolutions and linear layers only; {(strange or ['no layer'])[0]} is none")
    before: list[Activation | None] = [None]
    if not torch.equal(calls[0].inputs[0].flatten(), level.flatten()):
        raise Unsuited("recursive needs a first layer that takes the pixels as they are")
    for name, (call, after) in zip(names[1:], pairwise(calls), strict=True):
        before.append(_between(call.output, after.inputs[0], name))
    layers = [_layer(seen, call, act) for call, act in zip(calls, before, strict=True)]
    if layers[-1].weight.shape[0] != seen.classes or layers[-1].shift is None or calls[-1].kind != "linear":
        raise Unsuited(f"recursive needs a last linear layer with a bias and {seen.classes} outputs")
    return layers


def _between(output: Tensor, inputs: Tensor, name: str | None) -> Activation:
    """The activation that makes a layer's inputs of the output of the layer before."""
    output, inputs = output.flatten(), inputs.flatten()
    if output.shape == inputs.shape:
        lowest = int(output.argmin())
        share = float(f"{float(inputs[lowest]) / (float(output[lowest]) or 1.0):.6g}")  # as it was written
        known = [*ACTIVATIONS, *([leaky(share)] if 0 < share < 1 else [])]
        for act in known:
            if torch.equal(act.forward(output), inputs):
                return act
    raise Unsuited(f"recursive must undo what lies before {name}, which is no invertible activation; it works on "
                   "chains such as lenet")


def _layer(seen: Observation, call: Call, before: Activation | None) -> Layer:
    name, size = name_of(seen, call.weight), call.inputs[0][0].numel()
    assert name is not None and call.weight is not None
    if call.settings.get("groups", 1) != 1 or isinstance(call.settings.get("padding"), str) or size > LARGEST:
        raise Unsuited(f"recursive does not take {name}: grouped, padded by name, or more than {LARGEST} inputs")
    numbers = torch.arange(1, size + 1, dtype=torch.float64)
    if call.kind == "convolution":
        image = numbers.reshape(1, *call.inputs[0].shape[1:])
        how = {**ORDINARY, **{key: call.settings[key] for key in ORDINARY if key in call.settings}}
        numbers = F.unfold(image, tuple(call.weight.shape[2:]), **how)[0].T
    weight, gradient = (value.detach().double().flatten(1) for value in (call.weight, seen.update[name]))
    bias = None if call.bias is None else call.bias.detach().double()
    shift = seen.update.get(name_of(seen, call.bias) or "")
    return Layer(name, weight, bias, gradient, None if shift is None else shift.double(),
                 numbers.reshape(-1, weight.shape[1]).long() - 1, size, before)


def _last(head: Layer) -> tuple[Tensor, Tensor, int, float]:
    """The last layer's input, the loss's slope at its output, the label, and by what the update was scaled."""
    shift, wanted = head.shift, "recursive needs the undefended update of one example; "
    assert shift is not None and head.bias is not None
    x = head.gradient.T @ shift / shift.square().sum().clamp_min(1e-300)
    if not float((head.gradient - shift[:, None] * x).norm()) < ALONE * float(head.gradient.norm()):
        raise Unsuited(f"{wanted}the gradient of {head.name} is no product of two vectors")
    label = int(shift.argmin())
    delta = (head.weight @ x + head.bias).softmax(0)
    delta[label] -= 1
    scale = float(delta @ shift / delta.square().sum())
    if not float((shift - scale * delta).norm()) < ALONE * float(shift.norm()):
        raise Unsuited(f"{wanted}the bias gradient of {head.name} does not fit what the layer was given")
    return x, delta, label, scale


@dataclass(frozen=True)
class Solved:
    """A layer's input, how unsure every number of it is, how badly the equations fit (in their own errors, squared),
    and the smallest singular value beside the largest."""

    x: Tensor
    unsure: Tensor
    misfit: float
    open_by: float


def _through(layer: Layer, act: Activation, above: Solved, slope: Tensor, scale: float) -> tuple[Solved, Tensor]:
    """The input of a layer behind which an activation gave what is above; and the loss's slope at the layer's output.

    An activation with a bend at zero has two slopes there; where errors leave open which, the equations tell.
    """
    near = 1e-9
    h = above.x.clamp(act.low + near, act.high - near)
    z = act.inverse(h)
    slopes, others = act.slope(z), act.slope(-z)
    doubtful = (h.abs() < DOUBT * above.unsure) & ((slopes / others).log().abs() > 1)
    unsure = (above.unsure + ROUNDING * h.abs()) / torch.where(doubtful, torch.minimum(slopes, others), slopes)
    unsure = unsure + ROUNDING * z.square().mean().sqrt()  # the client's own, of the sums behind every number

    def solved(slopes: Tensor) -> Solved:
        return _input(layer, z, unsure, (slope * slopes).reshape(len(layer.weight), -1), scale)

    best = solved(slopes)
    for number in doubtful.nonzero().flatten().tolist()[:MOST]:
        turned = slopes.index_copy(0, torch.tensor([number]), others[[number]])
        if (other := solved(turned)).misfit < best.misfit:
            best, slopes = other, turned
    return best, slope * slopes


def _input(layer: Layer, z: Tensor, unsure: Tensor, delta: Tensor, scale: float) -> Solved:
    """A layer's input from its output and its weight's gradient."""
    output = z.reshape(len(layer.weight), -1) - (0.0 if layer.bias is None else layer.bias[:, None])
    sent = layer.gradient.flatten() / scale
    rounding = ROUNDING * sent.abs() + ROUNDING * sent.square().mean().sqrt()
    weights = 1 / torch.cat([unsure, rounding.clamp_min(1e-300)]).numpy()
    known = torch.cat([output.flatten(), sent]).numpy() * weights
    rows = scipy.sparse.diags(weights) @ scipy.sparse.vstack([layer.forward(), layer.learned(delta)])
    if rows.shape[0] < layer.inputs:
        raise Unsuited(f"recursive cannot solve {layer.name}: {rows.shape[0]} equations for {layer.inputs} unknowns")
    normal = torch.from_numpy((rows.T @ rows).toarray())
    sizes = normal.diagonal().sqrt().clamp_min(1e-300)
    normal = normal / sizes / sizes[:, None]
    factor, problem = torch.linalg.cholesky_ex(normal)
    flatness = 0.0 if int(problem) else _smallest(factor) / float(normal.abs().sum(0).max())
    if not flatness > FLAT**2:
        raise Unsuited(f"recursive cannot solve {layer.name}: its {rows.shape[0]} equations leave some of "
                       f"{layer.inputs} unknowns open")
    found = torch.zeros(layer.inputs, dtype=torch.float64)
    for _ in range(2):  # the second time for what the first lost in rounding
        left = torch.from_numpy(rows.T @ (known - rows @ found.numpy())) / sizes
        found = found + torch.cholesky_solve(left[:, None], factor)[:, 0] / sizes
    misfit = float(((known - rows @ found.numpy()) ** 2).sum())
    return Solved(found, torch.cholesky_inverse(factor).diagonal().sqrt() / sizes, misfit, math.sqrt(flatness))


def _smallest(factor: Tensor) -> float:
    """The smallest eigenvalue of a factored matrix, by inverse iteration."""
    vector = torch.arange(1, len(factor) + 1).to(factor).cos()[:, None]
    for _ in range(8):
        vector = torch.cholesky_solve(vector / vector.norm(), factor)
    return float(1 / vector.norm())
