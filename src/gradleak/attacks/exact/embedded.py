"""How a vision transformer takes in an image, up to its first attention, found by watching a replay."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.watched import Call, name_of, watched
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Batch, Observation

CLOSE = 1e-4
"""Relative difference up to which two ways to compute the same thing agree."""


@dataclass(frozen=True)
class Projection:
    """Query, key or value: weight and bias, the weight's gradient (none where it is frozen)."""

    weight: Tensor
    bias: Tensor
    gradient: Tensor | None


@dataclass(frozen=True)
class Embedded:
    """Patch u_p becomes z_p = weight u_p + offset_p, is normalised, times `gain` plus `shift`, and meets attention.

    u is the image times `scale` plus `level`, pixel by pixel. `fixed` are the tokens that no image changes, as
    attention gets them. All in float64.
    """

    weight: Tensor
    offset: Tensor
    scale: Tensor
    level: Tensor
    gain: Tensor
    shift: Tensor
    fixed: Tensor
    query: Projection
    key: Projection
    value: Projection
    heads: int
    side: tuple[int, int]
    patch_gradient: Tensor | None
    """Of `weight`, where it is trained."""
    place_gradient: Tensor | None
    """Of `offset`, where the position embeddings are trained."""
    sum_gradient: Tensor | None
    """Of the projection's bias: the sum of the tokens' gradients, told once more."""
    place_rms: float
    """Of the position embeddings' whole gradient, tokens that no image changes included."""

    @property
    def width(self) -> int:
        return len(self.weight)

    @property
    def places(self) -> int:
        return len(self.offset)

    @property
    def patch(self) -> int:
        """Numbers in a patch."""
        return self.weight.shape[1]

    def image(self, patches: Tensor) -> Tensor:
        """Pixels of images from their patches (B x places x numbers)."""
        whole = F.fold(patches.mT, tuple(self.scale.shape[1:]), self.side, stride=self.side)
        return (whole - self.level) / self.scale

    def centred(self, z: Tensor) -> Tensor:
        """What the normalisation makes of z before it divides by its spread."""
        return self.gain * (z - z.mean(-1, keepdim=True))


def embedded(seen: Observation, rng: Rng) -> Embedded:
    """What is to be known of the model, or the reason why the closed form does not apply."""
    if seen.vocabulary is not None:
        raise Unsuited("patches are read from images; the data are text")
    like = next(iter(seen.params.values())).detach()
    some = (rng / "image").uniform((1, *seen.shape), like)
    black, white, mixed = (_entrance(seen, x) for x in (torch.zeros_like(some), torch.ones_like(some), some))
    level, scale = black.u, white.u - black.u
    _agree(mixed.u, scale * some[0].double() + level, "pixels that reach the patch projection as they are, or scaled")
    side, weight = black.side, black.weight
    linear = [F.unfold(way.u[None], side, stride=side)[0].T @ weight.T for way in (black, mixed)]
    moved = (mixed.z - black.z).abs().amax(-1) > CLOSE * black.z.abs().max()
    here = slice(int(moved.int().argmax()), int(moved.int().argmax()) + len(linear[0]))
    if here.stop > len(moved) or int(moved.sum()) != len(linear[0]):
        raise Unsuited(f"patches needs one token a patch; {len(linear[0])} patches change {int(moved.sum())} tokens")
    offset = mixed.z[here] - linear[1]
    _agree(offset, black.z[here] - linear[0], "a first normalisation of each patch's projection plus its position")
    _undropped(seen, some, black.z)
    fixed = torch.cat([black.n[: here.start], black.n[here.stop :]])
    query, key, value = _projections(seen, mixed)
    sums, places = name_of(seen, mixed.project.bias), _places(seen, offset, here, len(moved), mixed.project.bias)
    return Embedded(weight, black.z[here] - linear[0], scale, level, mixed.gain, mixed.shift, fixed, query, key, value,
                    mixed.scores.inputs[0].shape[1], side, _gradient(seen, mixed.project.weight), places[0],
                    None if sums is None else seen.update[sums].double(), places[1])


@dataclass(frozen=True)
class _Way:
    """What one image met on its way: at the projection (u), before (z) and after (n) the first normalisation."""

    project: Call
    norm: Call
    linears: tuple[Call, ...]
    scores: Call

    @property
    def u(self) -> Tensor:
        return self.project.inputs[0][0].double()

    @property
    def z(self) -> Tensor:
        return self.norm.inputs[0][0].double()

    @property
    def n(self) -> Tensor:
        return self.norm.output[0].double()

    @property
    def weight(self) -> Tensor:
        assert self.project.weight is not None
        return self.project.weight.detach().double().flatten(1)

    @property
    def side(self) -> tuple[int, int]:
        assert self.project.weight is not None
        return self.project.weight.shape[2], self.project.weight.shape[3]

    @property
    def gain(self) -> Tensor:
        return torch.ones_like(self.z[0]) if self.norm.weight is None else self.norm.weight.detach().double()

    @property
    def shift(self) -> Tensor:
        return torch.zeros_like(self.z[0]) if self.norm.bias is None else self.norm.bias.detach().double()


def _entrance(seen: Observation, x: Tensor) -> _Way:
    """A convolution without overlap, a normalisation, linear layers that all get its output, attention."""
    calls = watched(seen, x, lambda call: call.kind == "scores")
    project = next((call for call in calls if call.kind == "convolution"), None)
    norm = next((call for call in reversed(calls) if call.kind == "norm"), None)
    if project is None or norm is None or calls[-1].kind != "scores" or norm.inputs[0].ndim != 3:
        raise Unsuited("patches needs a vision transformer: a patch projection, a normalisation, then attention; "
                       "it works on models such as vit")
    linears = tuple(call for call in calls if call.kind == "linear" and call.inputs[0].shape == norm.output.shape
                    and torch.equal(call.inputs[0], norm.output))
    if {call.kind for call in calls[: calls.index(norm)]} != {"convolution"} or calls.index(norm) != 1 or not linears:
        raise Unsuited("patches needs attention right behind the first normalisation of the projected patches (a "
                       "transformer that normalises before each layer)")
    way = _Way(project, norm, linears, calls[-1])
    told = [project.settings.get(key, default) for key, default in (("padding", 0), ("dilation", 1), ("stride", 1))]
    pairs = [value if isinstance(value, tuple) else (value, value) for value in told]
    even = all(size % side == 0 for size, side in zip(way.u.shape[1:], way.side, strict=True))
    if pairs != [(0, 0), (1, 1), way.side] or not even:
        raise Unsuited("patches needs patches that tile the image: no overlap, no padding, nothing left over")
    return way


def _agree(one: Tensor, other: Tensor, wanted: str) -> None:
    if float((one - other).abs().max()) > CLOSE * max(float(other.abs().max()), 1e-30):
        raise Unsuited(f"patches needs {wanted}; this model does something else")


def _undropped(seen: Observation, x: Tensor, tokens: Tensor) -> None:
    """Dropout behind the first attention changes nothing here, dropout before it everything."""
    sites = seen.sites(Batch(x, torch.zeros(1, dtype=torch.long, device=x.device)))
    if sites and sites[0].shape[-2:] == tokens.shape:
        raise Unsuited("patches cannot be read where the client drops parts of the embeddings")


def _projections(seen: Observation, way: _Way) -> tuple[Projection, Projection, Projection]:
    """Query, key and value, told apart by what the scores are made of."""
    parts: list[tuple[Tensor, Projection]] = []
    for call in way.linears:
        assert call.weight is not None
        pieces = 3 if len(call.weight) == 3 * call.weight.shape[1] else 1
        bias = torch.zeros(len(call.weight)).to(call.weight) if call.bias is None else call.bias
        sent = _gradient(seen, call.weight)
        gradients = [None] * pieces if sent is None else list(sent.chunk(pieces))
        parts += [(output, Projection(weight.detach().double(), shift.detach().double(), gradient))
                  for output, weight, shift, gradient in zip(call.output.chunk(pieces, -1), call.weight.chunk(pieces),
                                                             bias.chunk(pieces), gradients, strict=True)]
    one, other = way.scores.inputs
    query = [number for number, (output, _) in enumerate(parts) if _alike(output, one)]
    key = [number for number, (output, _) in enumerate(parts) if _alike(output, other) or _alike(output, other.mT)]
    rest = [number for number in range(len(parts)) if number not in (*query, *key)]
    if len(parts) != 3 or not len(query) == len(key) == len(rest) == 1:
        raise Unsuited("patches needs attention with one query, one key and one value layer of the model's width")
    return parts[query[0]][1], parts[key[0]][1], parts[rest[0]][1]


def _alike(output: Tensor, heads: Tensor) -> bool:
    """Whether a layer's output is what the heads (B x H x T x w) work with, but for a factor."""
    flat = heads.transpose(1, 2).flatten(2)
    return flat.shape == output.shape and float(F.cosine_similarity(flat.flatten(), output.flatten(), 0)) > 1 - CLOSE


def _gradient(seen: Observation, weight: Tensor | None) -> Tensor | None:
    name = name_of(seen, weight)
    return None if name is None else seen.update[name].double().flatten(1)


def _places(
    seen: Observation, offset: Tensor, here: slice, tokens: int, bias: Tensor | None,
) -> tuple[Tensor | None, float]:
    """The gradient of what is added to each patch (of the parameter that holds just these numbers), and that
    parameter's rms."""
    added = offset if bias is None else offset - bias.detach().double()
    for name, value in seen.params.items():
        if value.ndim > 1 and value.shape[-1] == offset.shape[1] and value[..., 0].numel() in (tokens, len(offset)):
            rows = here if value[..., 0].numel() == tokens else slice(None)
            table = value.detach().double().reshape(-1, offset.shape[1])[rows]
            if float((table - added).abs().max()) <= CLOSE * float(offset.abs().max()):
                sent = seen.update[name].double().reshape(-1, offset.shape[1])
                return sent[rows], float(sent.square().mean().sqrt())
    return None, 0.0
