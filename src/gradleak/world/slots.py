"""A module called with other tensors than its own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Slots:
    """Where a module keeps its parameters and buffers, found once: others are put there for the time of a call.

    As torch's functional call, without its walk through the module at every one. Tied tensors are replaced together.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        shared: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for path, part in module.named_modules():
            stores: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for store in stores:
                for name, tensor in store.items():
                    if tensor is not None:
                        places = shared.setdefault(id(tensor), [])
                        places.append((store, name))
                        self._places[f"{path}.{name}" if path else name] = places

    def called(self, tensors: Mapping[str, Tensor], *given: Any, **named: Any) -> Any:
        before: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for name, tensor in tensors.items():
                for store, key in self._places[name]:
                    before.append((store, key, store[key]))
                    store[key] = tensor
            return self.module(*given, **named)
        finally:
            for store, key, tensor in reversed(before):
                store[key] = tensor
