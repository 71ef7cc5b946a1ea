"""Layers that are differentiated twice in the data only, against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak import onednn, twice
from gradleak.attacks.learned import network
from gradleak.calculus import gradient
from gradleak.rng import Rng


def made(**sizes: tuple[int, ...]) -> list[Tensor]:
    return [(Rng(0) / name).normal(size, torch.zeros(1)).double() for name, size in sizes.items()]


def test_large_layers_have_the_same_value_slope_and_bend(monkeypatch) -> None:
    """By oneDNN, from a few rows on, as by torch's own product; nothing goes to the weight."""
    x, weight, bias = (each.float() for each in made(x=(2, 3, 40), weight=(50, 40), bias=(50,)))
    found = []
    for large in (1, 10**9):
        monkeypatch.setattr(onednn, "LARGE", large)
        at = x.clone().requires_grad_()
        y = twice.linear(at, weight, bias)
        (slope,) = torch.autograd.grad(y.tanh().sum(), at, create_graph=True)
        found.append((y, slope, *torch.autograd.grad(slope.square().sum(), at)))
        assert (type(y.grad_fn).__name__ == "_LinearBackward") == (large == 1 and onednn._there())
    assert all(torch.allclose(one, other, atol=1e-4, rtol=1e-4) for one, other in zip(*found, strict=True))


@pytest.mark.skipif(not onednn._there(), reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("rows", [(1, 3), (2, 5), (128,)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_the_same_whichever_is_multiplied_with_which(monkeypatch, rows: tuple[int, ...], bias) -> None:
    """Too few rows, some, and too many to turn: what comes of it lies as torch's own does."""
    x, weight, extra = (each.float() for each in made(x=(*rows, 40), weight=(50, 40), extra=(50,)))
    calls, plain = [], onednn._linear
    monkeypatch.setattr(onednn, "_linear", lambda *given: calls.append(given[0] is weight) or plain(*given))
    for each in (x, x.transpose(0, -2)):
        found = onednn.product(each, weight, extra if bias else None)
        expected = F.linear(each, weight, extra if bias else None)
        assert torch.allclose(found, expected, atol=1e-4) and found.is_contiguous()
    turned = onednn.product(x, weight.mT.contiguous().mT)
    assert torch.allclose(turned, F.linear(x, weight), atol=1e-4)
    assert calls == [rows == (2, 5)] * 2 + [False]


def test_large_layers_that_are_trained_have_the_same_gradients(monkeypatch) -> None:
    x, *values = (each.float() for each in made(x=(7, 40), a=(50, 40), b=(50,), c=(30, 50), d=(30,)))
    found = []
    for large in (1, 10**9):
        monkeypatch.setattr(onednn, "LARGE", large)
        names = ("net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias")
        leaves = {name: value.clone().requires_grad_() for name, value in zip(names, values, strict=True)}
        y = network.forward(leaves, x, 2)
        assert (type(y.grad_fn).__name__ == "_LinearBackward") == (large == 1 and onednn._there())
        found.append((y, *torch.autograd.grad(y.square().sum(), list(leaves.values()))))
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-2) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"padding": (0, 2), "dilation": 2, "groups": 2},
                                     {"stride": (2, 1), "padding": 1}])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_have_the_same_gradients_and_slopes(monkeypatch, options, bias: bool) -> None:
    """Gradients in the weights, and how what is made of them changes with the data."""
    x, first, second, extra = made(x=(2, 4, 9, 8), first=(6, 4 // options.get("groups", 1), 3, 3),
                                   second=(3, 6, 2, 2), extra=(6,))
    params = {"first": first, "second": second, **({"bias": extra} if bias else {})}
    found, used = [], []
    for heavy in (1, 10**12):
        monkeypatch.setattr(twice, "HEAVY", heavy)
        at = x.clone().requires_grad_()

        def loss(leaves, at=at) -> Tensor:
            hidden = F.conv2d(at, leaves["first"], leaves.get("bias"), **options)
            used.append("_Convolution" in str(hidden.grad_fn) + str(hidden.grad_fn.next_functions))
            return F.conv2d(hidden.tanh(), leaves["second"]).tanh().square().sum()

        update = gradient(loss, params)
        value = sum((each * each.detach().sin() + each.square()).sum() for each in update.values())
        found.append((*update.values(), *torch.autograd.grad(value, at)))
    assert used == [True, False]
    assert all(torch.allclose(one, other, rtol=1e-9, atol=1e-9) for one, other in zip(*found, strict=True))


def test_weights_that_are_made_of_the_data_are_left_to_torch(monkeypatch) -> None:
    """A second local step: its weights change with the data, and what comes of that counts."""
    monkeypatch.setattr(twice, "HEAVY", 1)
    x, weight = made(x=(1, 2, 5, 5), weight=(3, 2, 3, 3))
    slopes = []
    for mode in (twice.Twice(), torch.overrides.BaseTorchFunctionMode()):
        at = x.clone().requires_grad_()
        with mode:
            moved = weight * at.mean()
            y = F.conv2d(at, moved).tanh()
        (slope,) = torch.autograd.grad(y.square().sum(), moved, create_graph=True)
        slopes.append(torch.autograd.grad(slope.square().sum(), at)[0])
    assert torch.allclose(*slopes)


def test_a_gradient_that_is_taken_once_is_torchs_own() -> None:
    (x,) = made(x=(1, 2, 5, 5))
    kinds = []

    def loss(leaves) -> Tensor:
        y = F.conv2d(x, leaves["w"])
        kinds.append(type(y.grad_fn).__name__)
        return y.sum()

    with torch.no_grad():
        gradient(loss, {"w": made(w=(3, 2, 3, 3))[0]})
    assert kinds == ["ConvolutionBackward0"]
