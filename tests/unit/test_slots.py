"""A module called with tensors that are not its own."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradleak.world.slots import Slots


class Tied(nn.Module):
    """A table that is also the last layer's weight, with a buffer between."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.out.weight = self.table.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids: Tensor, times: float = 1.0) -> Tensor:
        return self.out(self.table(ids) * self.scale) * times


def test_a_call_with_other_tensors_is_torchs_own() -> None:
    module, ids = Tied(), torch.tensor([0, 3])
    others = {"table.weight": torch.randn(5, 3), "scale": torch.tensor(0.5)}
    found = Slots(module).called(others, ids, times=3.0)
    assert torch.equal(found, functional_call(module, others, (ids,), {"times": 3.0}))
    assert not torch.equal(found, module(ids, times=3.0))


def test_the_modules_own_tensors_come_back_even_after_an_error() -> None:
    module = Tied()
    before = module(torch.tensor([1]))
    with pytest.raises(IndexError):
        Slots(module).called({"table.weight": torch.zeros(5, 3)}, torch.tensor([9]))
    assert torch.equal(module(torch.tensor([1])), before) and module.out.weight is module.table.weight
