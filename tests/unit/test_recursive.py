"""The layer-by-layer solve: exact where it applies, a sentence where it does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gradleak.attacks.exact import recursive
from gradleak.attacks.exact.recursive import Recursive, Solved, _chain, _last, _through, leaky
from gradleak.errors import Unsuited
from gradleak.rng import Rng
from gradleak.types import Guess, Observation

MODELS = """
from torch import nn

def chain(activation, last=True, channels=12, stride=2, pool=False):
    def build(shape, classes):
        side = shape[-1] // stride // 2
        middle = [nn.AvgPool2d(2)] if pool else [nn.Conv2d(channels, channels, 3, 2, 1), activation()]
        return nn.Sequential(nn.Conv2d(shape[0], channels, 5, stride, 2), activation(), *middle, nn.Flatten(),
                             nn.Linear(channels * side * side, classes, bias=last))
    return build

tanh, softplus, elu, leaky = chain(nn.Tanh), chain(nn.Softplus), chain(nn.ELU), chain(nn.LeakyReLU)
tenth, fifth = chain(lambda: nn.LeakyReLU(0.1)), chain(lambda: nn.LeakyReLU(0.2))
narrow, coarse = chain(nn.Sigmoid, channels=2), chain(nn.Sigmoid, channels=1, stride=4)
unbiased, pooled = chain(nn.Sigmoid, last=False), chain(nn.Sigmoid, pool=True)

def alike(shape, classes):
    model = tanh(shape, classes)
    for layer in (model[2], model[5]):
        layer.weight.data[:] = layer.weight.data.mean(0)
    return model

class Shifted(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = tanh(shape, classes)

    def forward(self, x):
        return self.body((x - 0.5) / 0.25)
"""


@pytest.fixture
def chain_task(tmp_path, monkeypatch) -> Callable[[str], str]:
    (tmp_path / "chains_to_undo.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: f"image(model=python('chains_to_undo:{name}'), data=photos(size=16, count=40))"


def answer(seen: Observation) -> Guess:
    return list(Recursive().guesses(seen, Rng(2)))[-1]


def decibels(guess: Guess, truth: torch.Tensor) -> float:
    return float(-10 * (guess.batch.x.double() - truth.double()).square().mean().log10())


@pytest.mark.parametrize("trial", range(3))
def test_lenet_is_solved_with_its_label(play, trial: int) -> None:
    scene = play(who="curious", trial=trial)
    guess = answer(scene.seen)
    assert decibels(guess, scene.secret.readings) > 70
    assert guess.batch.y.tolist() == scene.secret.labels.tolist()
    assert guess.step == guess.steps and float(guess.reading.min()) >= 0 and float(guess.reading.max()) <= 1


@pytest.mark.parametrize("name", ["tanh", "softplus", "elu", "leaky", "tenth", "fifth"])
def test_other_activations_that_can_be_undone(play, chain_task, name: str) -> None:
    for trial in (0, 2, 7):  # in two of them a number is nearer to zero, where some bend, than it is exact
        scene = play(task=chain_task(name), trial=trial)
        assert decibels(answer(scene.seen), scene.secret.readings) > 85


@pytest.mark.parametrize("most", [0, recursive.MOST])
def test_where_errors_leave_open_on_which_side_of_a_bend_a_number_is_both_are_tried(
    play, chain_task, monkeypatch, most: int,
) -> None:
    monkeypatch.setattr(recursive, "MOST", most)
    *_, layer, head = _chain(play(task=chain_task("leaky")).seen)
    x, delta, _, scale = _last(head)
    slope = torch.from_numpy(head.forward().T @ delta.numpy())
    near = x.abs() == x.abs().min()
    wrong = torch.where(near, -x, x)  # within the error it is said to have
    above = Solved(wrong, torch.where(near, 2, recursive.ROUNDING) * x.abs(), 0.0, 1.0)
    _, found = _through(layer, leaky(0.01), above, slope, scale)
    assert found.equal(slope * leaky(0.01).slope(x)) == (most > 0)


def test_a_clipped_update_is_only_scaled(play) -> None:
    scene = play("clip(norm=0.01)", who="curious")
    assert decibels(answer(scene.seen), scene.secret.readings) > 70


def test_the_client_that_takes_examples_side_by_side_is_followed(play) -> None:
    scene = play(client="per_sample")
    assert decibels(answer(scene.seen), scene.secret.readings) > 70


def test_every_layers_gradient_is_used(play) -> None:
    scene = play(who="curious")
    first = next(iter(scene.seen.update))
    wrong = {**scene.seen.update, first: scene.seen.update[first] * 1.5}
    assert decibels(answer(replace(scene.seen, update=wrong)), scene.secret.readings) < 50


@pytest.mark.parametrize(("model", "reason"), [
    ("convnet", "no invertible activation"), ("mlp(width=32)", "no invertible activation"), ("resnet20", "is none"),
])
def test_other_models_are_refused(play, model: str, reason: str) -> None:
    refused(play(task=f"image(model={model}, data=photos(size=16, count=40))").seen, reason)


@pytest.mark.parametrize(("name", "reason"), [
    ("unbiased", "with a bias"), ("pooled", "no invertible activation"), ("coarse", r"equations for \d+ unknowns"),
    ("Shifted", "takes the pixels as they are"), ("narrow", r"equations for \d+ unknowns"),
    ("alike", r"leave some of \d+ unknowns open"),
])
def test_chains_that_cannot_be_solved_are_refused(play, chain_task, name: str, reason: str) -> None:
    refused(play(task=chain_task(name)).seen, reason)


@pytest.mark.parametrize("defense", ["noise(relative=0.01)", "prune(keep=0.5)", "sign"])
def test_defended_updates_are_refused(play, defense: str) -> None:
    refused(play(defense).seen, "undefended")


def test_several_examples_several_steps_and_text_are_refused(play, text_task) -> None:
    refused(play(count=2).seen, "made of 2")
    refused(play(client="local_steps(steps=3, rate=0.1)").seen, "one step")
    refused(play(task=text_task(), who="curious+labels+lengths").seen, "text")


def refused(seen: Observation, reason: str) -> None:
    with pytest.raises(Unsuited, match=reason) as caught:
        answer(seen)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
