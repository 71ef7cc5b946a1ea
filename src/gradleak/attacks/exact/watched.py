"""The layers a replay runs through, as they are called: which weights, what went in, what came out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradleak.errors import Unsuited
from gradleak.types import Batch, Observation


@dataclass(frozen=True)
class Call:
    """One layer at work. `inputs` are its tensors without weights, `settings` what else it was told, by name."""

    kind: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    weight: Tensor | None
    bias: Tensor | None
    settings: Mapping[str, Any]


class Enough(Exception):
    """All that was asked for has been seen."""


Signature = tuple[str, int, tuple[str, ...]]
"""The kind of layer, how many arguments are its inputs, and the names of the others in their order."""

_KINDS: dict[Callable[..., Any], Signature] = {
    F.conv2d: ("convolution", 1, ("weight", "bias", "stride", "padding", "dilation", "groups")),
    F.linear: ("linear", 1, ("weight", "bias")),
    F.layer_norm: ("norm", 1, ("shape", "weight", "bias", "eps")),
    F.scaled_dot_product_attention: ("scores", 2, ()),
    torch.matmul: ("scores", 2, ()),
    Tensor.matmul: ("scores", 2, ()),
    Tensor.__matmul__: ("scores", 2, ()),
}


class Watch(TorchFunctionMode):
    """Writes down every layer of a known kind until one has been called that `until` holds for."""

    def __init__(self, until: Callable[[Call], bool]) -> None:
        self.until = until
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _KINDS:
            self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], output: Tensor) -> None:
        kind, count, names = _KINDS[func]
        inputs = tuple(args[:count]) or (kwargs["input"],)
        if kind == "scores" and any(value.ndim != 4 for value in inputs):
            return
        # Asking for a value also makes a client that takes its examples side by side take them one by one.
        if not bool(output.isfinite().all()):
            raise Unsuited("the replay runs into numbers that are not finite")
        given = {**dict(zip(names, args[count:], strict=False)), **{k: v for k, v in kwargs.items() if k != "input"}}
        self.calls.append(Call(kind, tuple(value.detach() for value in inputs), output.detach(),
                               given.pop("weight", None), given.pop("bias", None), given))
        if self.until(self.calls[-1]):
            raise Enough


def never(call: Call) -> bool:
    return False


def watched(seen: Observation, x: Tensor, until: Callable[[Call], bool] = never) -> list[Call]:
    """The layers that a batch of such images runs through in the client's first step, up to the first wanted."""
    watch = Watch(until)
    with torch.no_grad():
        try:
            with watch:
                seen.replay(Batch(x, torch.zeros(len(x), dtype=torch.long, device=x.device)))
        except Enough:
            pass
    return watch.calls


def name_of(seen: Observation, weight: Tensor | None) -> str | None:
    """Under which name a weight's gradient was sent; None if it is frozen, or no weight."""
    return next((name for name, value in seen.params.items() if value is weight), None)
