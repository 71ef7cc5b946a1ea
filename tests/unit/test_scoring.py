"""Many candidates judged at once: the same as one by one."""

import pytest
import torch
from torch import Tensor

from gradleak.attacks.exact.judge import sent
from gradleak.attacks.parts import objectives
from gradleak.attacks.scoring import Scoring
from gradleak.factored import Reference
from gradleak.lanes import Lanes
from gradleak.rng import Rng
from gradleak.types import Batch

OBJECTIVES = {"cosine": lambda update: objectives.cosine, "layer_cosine": lambda update: objectives.layer_cosine,
              "l2": lambda update: objectives.l2, "sent": sent}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("which", [0, 2])
def test_one_changed_sentence_is_scored_as_the_whole_batch(
    play, text_task, monkeypatch, family: str, objective: str, which: int,
) -> None:
    scene = play("none", "curious", 3, "one_step(mode=eval)", task=text_task(family, ", positions=trained"))
    scoring, truth, many = scored(scene, objective, which)
    replayed = []
    plain = scoring.replay._take
    monkeypatch.setattr(scoring.replay, "_take", lambda way, x, *rest: replayed.append(x.shape) or plain(way, x, *rest))
    quick = scoring.changed(truth.x, truth.y, truth.extra, which, many)
    assert replayed[-1][:3] == (5, 1, int(truth.extra["mask"][which].sum()))  # only the one sentence, up to its end
    whole = truth.x.expand(5, *truth.x.shape).clone()
    whole[:, which] = many
    full = scoring(whole, truth.y.expand(5, -1), {k: v.expand(5, *v.shape) for k, v in truth.extra.items()})
    assert torch.allclose(quick, full, rtol=1e-5, atol=1e-5 * float(full.abs().max()))
    assert float(full.std()) > 1e-4 * float(full.abs().max())


def scored(scene, objective: str, which: int) -> tuple[Scoring, Batch, Tensor]:
    """A scoring, the true batch and a few changes to one sentence of it."""
    seen, truth = scene.seen, scene.secret.batch
    lanes = Lanes(seen.replay, truth.x.expand(2, *truth.x.shape), truth.y.expand(2, -1),
                  {k: v.expand(2, *v.shape) for k, v in truth.extra.items()}, factor=True)
    rank = int(truth.extra["mask"].sum())
    scoring = Scoring(lanes, OBJECTIVES[objective](seen.update), Reference(seen.update, rank))
    many = truth.x[which] + truth.x.std() * torch.randn(5, *truth.x[which].shape, generator=Rng(0).torch())
    return scoring, truth, many


@pytest.mark.parametrize(("spec", "sums"), [("none", True), ("clip(norm=0.01)", False), ("sign", False),
                                            ("prune(keep=0.3)", True)])
def test_only_what_adds_up_is_taken_apart(play, text_task, spec: str, sums: bool) -> None:
    scoring, truth, many = scored(
        play(spec, "informed", 3, "one_step(mode=eval)", task=text_task()), "cosine", 1)
    assert scoring._adds_up(truth.x, truth.y, truth.extra) == sums
    quick = scoring.changed(truth.x, truth.y, truth.extra, 1, many)
    whole = truth.x.expand(5, *truth.x.shape).clone()
    whole[:, 1] = many
    full = scoring(whole, truth.y.expand(5, -1), {k: v.expand(5, *v.shape) for k, v in truth.extra.items()})
    assert torch.allclose(quick, full, atol=1e-5)
