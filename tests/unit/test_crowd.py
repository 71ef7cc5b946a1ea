"""Several sentences read out of one update that hides them behind noise, signs or gaps."""

from types import SimpleNamespace

import pytest
import torch

from gradleak.attacks.exact import crowd, likely
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.judge import Company, Judge
from gradleak.rng import Rng
from gradleak.types import NOTHING

pytest.importorskip("transformers")


@pytest.fixture
def scene(play, text_task):
    return lambda defense, count=2, who="curious", trial=0: play(
        defense, who, count, "one_step(mode=eval)", trial=trial, task=text_task("bert", "", 64))


def truths(here) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != NOTHING) for row in here.secret.readings.tolist()]


def test_reads_every_sentence(scene):
    here = scene("noise(relative=0.3)")
    found = crowd.read(entrance(here.seen), 2, Rng(1))
    assert sorted(found.sentences) == sorted(truths(here))
    labels = dict(zip(truths(here), here.secret.labels.tolist(), strict=True))
    assert found.labels == tuple(labels[sentence] for sentence in found.sentences)
    assert not any(any(row) for row in found.certain)


def test_what_is_told_is_used(scene):
    here = scene("noise(relative=0.3)", who="curious+labels+lengths", count=3)
    found = crowd.read(entrance(here.seen), 3, Rng(1))
    assert sorted(map(len, found.sentences)) == sorted(map(len, truths(here)))
    assert sorted(found.labels) == sorted(here.secret.labels.tolist())


def test_the_words_are_found_before_their_places(scene):
    here = scene("noise(relative=0.3)")
    pool = crowd.gathered(likely.hearings(entrance(here.seen), Rng(1))[-1], 2)
    assert {token for sentence in truths(here) for token in sentence[1:-1]} <= set(pool.tolist())


def test_a_changed_sentence_is_judged_as_the_whole_batch_would_be(scene):
    here = scene("noise(relative=0.3)")
    judge, (one, other) = Judge(entrance(here.seen)), truths(here)
    company = Company((one, other), tuple(here.secret.labels.tolist()))
    rivals = [(*one[:2], 7, *one[3:]), (*one[:2], 9, *one[3:])]
    alone, whole = judge.instead(company, 0, rivals), judge.companies([company.but(0, each) for each in rivals])
    assert alone == pytest.approx(whole, rel=1e-3) and max(whole) < judge.companies([company])[0]


def test_ties_part_the_words(scene):
    places, ties = torch.tensor([1, 1, 2, 2]), torch.tensor([[0, 0, 1, 9], [0, 0, 8, 1], [1, 8, 0, 0], [9, 1, 0, 0.0]])
    worth, owners = crowd._improved(torch.tensor([0, 1, 0, 1]), places, ties.double(), (4, 4), 1)
    assert owners[0] == owners[3] and owners[1] == owners[2] and owners[0] != owners[1] and worth == 34


@pytest.mark.parametrize("told", [None, torch.tensor([6, 5])], ids=["lengths unknown", "lengths told"])
def test_words_that_strayed_are_brought_back(told: torch.Tensor | None) -> None:
    search = SimpleNamespace(opening=(1,), closing=(2,), told=told, possible=lambda length: 3 <= length <= 9)
    truth = Company(((1, 10, 11, 12, 13, 2), (1, 20, 21, 22, 2)), (0, 1))
    exchanged = Company(((1, 21, 11, 12, 13, 2), (1, 20, 10, 22, 2)), (0, 1))
    moved = Company(((1, 10, 11, 13, 2), (1, 20, 12, 21, 22, 2)), (0, 1))
    assert truth in crowd._strayed(exchanged, search) and truth not in crowd._strayed(truth, search)
    assert (truth in crowd._strayed(moved, search)) == (told is None)
