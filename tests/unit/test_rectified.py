"""Batches read out of a fully connected layer whose neurons are off for some examples."""

import pytest
import torch

from gradleak.attacks.exact.rectified import parted
from gradleak.attacks.exact.subspace import Pictures
from gradleak.errors import Unsuited
from gradleak.metrics.match import assign
from gradleak.rng import Rng

TASK = "image(model=mlp(width=96), data=photos(size=8, count=40))"


def psnr(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return -10 * (found[assign(found, truth)] - truth).square().flatten(1).mean(1).log10()


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_every_image_of_a_batch_is_exact(play, count):
    here = play("none", "curious", count, "one_step", task=TASK)
    (guess,) = Pictures().guesses(here.seen, Rng(1))
    assert float(psnr(guess.reading, here.secret.readings).min()) > 50 and guess.notes["certain"] == 1
    order = assign(guess.reading, here.secret.readings)
    assert guess.batch.y[order].tolist() == here.secret.labels.tolist()


@pytest.mark.parametrize(("defense", "count"), [("noise(relative=0.1)", 4), ("sign", 4), ("none", 40)])
def test_where_it_cannot_work_it_says_why(play, defense, count):
    here = play(defense, "curious", count, "one_step", task=TASK)
    with pytest.raises(Unsuited, match="smaller batches"):
        list(Pictures().guesses(here.seen, Rng(1)))


def test_neurons_that_are_never_off_tell_nothing():
    deltas, x = Rng(1).normal((60, 3), torch.zeros(1)).double(), Rng(2).uniform((3, 30), torch.zeros(1)).double()
    with pytest.raises(Unsuited, match="0 of 3"):
        parted(deltas @ x, deltas.sum(1), 3, Rng(3))
