"""Soteria hides the features that tell most of the input, and only those."""

import pytest
import torch

from gradleak.errors import UsageError
from gradleak.residual import residual


def head(scene) -> str:
    return [name for name, value in scene.seen.params.items() if value.ndim == 2][-1]


def test_it_hides_the_features_from_which_the_input_can_be_told_best(play) -> None:
    """The slopes again, one feature at a time, by the plain module."""
    plain, sent = play("none"), play("soteria(prune=0.3)")
    name, body = head(sent), sent.world.learner.modes["eval"][0]
    x = sent.secret.batch.x.clone().requires_grad_()
    features = body(x)[0]
    slopes = torch.stack([torch.autograd.grad(f, x, retain_graph=True)[0].norm() for f in features])
    order = (features.abs() / slopes).argsort(descending=True)
    gone = (sent.sent.release.update[name] == 0).all(0)
    assert int(gone.sum()) == round(0.3 * len(features))
    assert set(gone.nonzero().flatten().tolist()) == set(order[: int(gone.sum())].tolist())
    for other, value in plain.sent.release.update.items():
        assert torch.equal(value * ~gone if other == name else value, sent.sent.release.update[other])


def test_an_attacker_who_knows_of_it_replays_it(play) -> None:
    naive, informed = (play("soteria(prune=0.5)", who, 2) for who in ("curious", "informed"))
    assert residual(informed.seen, informed.secret.batch).cosine < 1e-6
    assert residual(naive.seen, naive.secret.batch).cosine > 1e-4


def test_it_works_on_words_and_says_where_it_cannot(play, text_task) -> None:
    scene = play("soteria(prune=0.5)", "informed", 2, task=text_task(), client="one_step(mode=eval)")
    gone = (scene.sent.release.update[head(scene)] == 0).all(0)
    assert int(gone.sum()) == len(gone) // 2
    assert residual(scene.seen, scene.secret.batch).cosine < 1e-6
    with pytest.raises(UsageError, match="between 0 and 1"):
        play("soteria(prune=1)")


def test_the_formula_for_labels_is_not_believed_where_features_are_hidden(play) -> None:
    from gradleak.attacks.parts.labels import _bare, made_up
    from gradleak.rng import Rng

    for defense, bare in (("none", True), ("soteria(prune=0.5)", False)):
        seen = play(defense, "informed", 2).seen
        assert _bare(seen, made_up(seen, 2, Rng(0), 0)) is bare
