"""Words in their places, by the entries that were sent where others were left out."""

import pytest
import torch

from gradleak.attacks.exact import crowd, gaps, likely
from gradleak.attacks.exact.course import Course
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.gaps import Entries, Mix, Seated
from gradleak.attacks.exact.judge import Judge
from gradleak.rng import Rng
from gradleak.types import NOTHING


@pytest.fixture
def mixed() -> tuple[Entries, torch.Tensor]:
    """Half of the entries of mixes of the first eight of fourteen vectors."""
    stream = Rng(3)
    vectors = (stream / "vectors").normal((14, 40), torch.zeros(())).double()
    mixes = (stream / "mixes").normal((30, 8), torch.zeros(())).double() @ vectors[:8]
    return Entries([mixes * ((stream / "sent").uniform(mixes.shape, mixes) < 0.5)], 8.0, 0.05), vectors


def likely_with(entries: Entries, vectors: torch.Tensor) -> float:
    """As the definition has it: every row's entries are normal, with what the vectors give them and noise."""
    total, scaled = 0.0, vectors * entries.scale
    for row in entries.stack:
        there = row != 0
        spread = scaled[:, there].mT @ scaled[:, there] + torch.eye(int(there.sum())).double()
        law = torch.distributions.MultivariateNormal(torch.zeros(len(spread)).double(), spread)
        nothing = torch.distributions.Normal(0.0, 1.0)
        total += float(law.log_prob(row[there]) - nothing.log_prob(row[there]).sum())
    return total


def test_entries_are_as_likely_as_a_normal_law_says(mixed):
    entries, vectors = mixed
    for number in (5, 8, 11):
        assert Mix(entries, vectors[:number]).likely == pytest.approx(likely_with(entries, vectors[:number]), rel=1e-5)


def test_the_truth_is_likelier_than_fewer_more_or_others(mixed):
    entries, vectors = mixed
    truth = Mix(entries, vectors[:8])
    assert truth.likely > float(truth.added(vectors[8:]).max())
    assert truth.likely > float(truth.without(range(8)).max())
    others = truth.changed(torch.arange(8).repeat_interleave(6)[:, None], vectors[8:].repeat(8, 1)[:, None])
    assert truth.likely > float(others.max())


@pytest.mark.parametrize("together", [gaps.TOGETHER, 1], ids=["at once", "one by one"])
def test_changes_are_judged_without_solving_anew(mixed, monkeypatch, together: int):
    monkeypatch.setattr(gaps, "TOGETHER", together)
    entries, vectors = mixed
    mix = Mix(entries, vectors[:9])
    changes = [((3, 1), (10, 12)), ((0, 8), (11, 9)), ((5, 7), (13, 10))]
    found = mix.changed(torch.tensor([gone for gone, _ in changes]), vectors[torch.tensor([new for _, new in changes])])
    for value, (gone, new) in zip(found.tolist(), changes, strict=True):
        kept = [number for number in range(9) if number not in gone]
        assert value == pytest.approx(Mix(entries, vectors[[*kept, *new]]).likely, rel=1e-6)
    for value, number in zip(mix.without([2, 6]).tolist(), (2, 6), strict=True):
        kept = [other for other in range(9) if other != number]
        assert value == pytest.approx(Mix(entries, vectors[kept]).likely, rel=1e-6)
    assert mix.added(vectors[9:10]).item() == pytest.approx(Mix(entries, vectors[:10]).likely, rel=1e-6)


def test_what_is_left_lies_along_the_word_that_is_missing(mixed):
    entries, vectors = mixed
    rest = Mix(entries, vectors[[0, 1, 2, 4, 5, 6, 7]]).rest
    along = (vectors @ rest).square().sum(1) / vectors.square().sum(1)
    assert int(along.argmax()) == 3


@pytest.fixture
def scene(play, text_task):
    pytest.importorskip("transformers")
    return lambda defense, count=2, who="curious", trial=0: play(
        defense, who, count, "one_step(mode=eval)", trial=trial, task=text_task("bert", "", 64))


def seated(here) -> Seated:
    sentences = [[token for token in row if token != NOTHING] for row in here.secret.readings.tolist()]
    keys = [(token, place) for each in sentences for place, token in enumerate(each) if 0 < place < len(each) - 1]
    return Seated(tuple(sorted(map(len, sentences))), tuple(keys))


def test_words_lengths_and_places_are_found_from_a_poor_beginning(scene):
    """From lengths that are all wrong, and without half of the words."""
    here = scene("prune(keep=0.2)", trial=1)
    search, truth = likely.hearings(entrance(here.seen), Rng(1), 16)[-1], seated(here)
    pool = torch.unique(torch.tensor([token for token, _ in truth.seats[::2]]))
    found = gaps.sifted(search, pool, tuple(length + 1 for length in truth.lengths))
    assert found.lengths == truth.lengths and sorted(found.seats) == sorted(truth.seats)


def test_two_words_are_changed_at_once(scene):
    here = scene("prune(keep=0.2)")
    search, truth = likely.hearings(entrance(here.seen), Rng(1), 16)[-1], seated(here)
    pool = torch.unique(torch.tensor([token for token, _ in truth.seats]))
    (one, place), (other, there) = truth.seats[1], truth.seats[-2]
    wrong = truth.but(1, (other, place)).but(len(truth.seats) - 2, (int(pool[0]), there))
    assert len({one, other, int(pool[0])}) == 3
    sifting = gaps._Sifting(search, pool, gaps.ROUGH[-1])
    assert sifting._paired(wrong) == truth == sifting._paired(truth)
    assert sifting._paired(Seated(truth.lengths, truth.seats[:1])).lengths == truth.lengths


def test_lengths_that_were_told_stay(scene):
    here = scene("prune(keep=0.2)", who="curious+lengths")
    search = likely.hearings(entrance(here.seen), Rng(1), crowd.LONGEST)[-1]
    told = tuple(sorted(search.told.flatten().tolist()))
    pool, _ = crowd.gathered(search, 2)
    assert gaps.sifted(search, pool, told).lengths == told == seated(here).lengths


def test_one_sentence_is_read_as_a_batch_where_something_is_left_to_explain(scene, monkeypatch):
    """The first way is made to fail; what it says is not believed, as entries remain that it does not explain."""
    here = scene("prune(keep=0.2)", count=1)
    door = entrance(here.seen)
    (truth,) = (tuple(row.tolist()) for row in here.secret.readings)
    right = likely.read(door, Rng(1))
    wrong = likely.Reading([truth[:2] + truth[1:]], right.certain, right.labels, {"likelihood": 1.0})
    monkeypatch.setattr(likely, "read", lambda door, rng: wrong)
    first, *_, last = crowd.single(door, Rng(1), Course())
    assert first.open and first.sentences == wrong.sentences
    assert not last.open and last.sentences[0] == truth
    monkeypatch.setattr(likely, "read", lambda door, rng: right)
    monkeypatch.setattr(crowd, "read", lambda *_: pytest.fail("nothing is left to explain"))
    assert list(crowd.single(door, Rng(1), Course())) == [right]


def test_one_sentence_that_leaves_something_is_said_all_the_same(scene, monkeypatch):
    here = scene("prune(keep=0.2)", count=1)
    monkeypatch.setattr(Judge, "entire", lambda self, score: False)
    *_, last = crowd.read(entrance(here.seen), 1, Rng(1), Course())
    assert list(last.sentences[0]) == here.secret.readings[0].tolist()
