"""Several sentences read out of one update that hides them behind noise, signs or gaps."""

from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from gradleak.attacks.exact import crowd, likely, settling
from gradleak.attacks.exact.arrange import explained
from gradleak.attacks.exact.course import Course
from gradleak.attacks.exact.echo import Echo, _explained
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.gaps import Seated
from gradleak.attacks.exact.judge import Company, Judge
from gradleak.attacks.exact.seating import replaced, seating
from gradleak.rng import Rng
from gradleak.types import NOTHING, Know

pytest.importorskip("transformers")


@pytest.fixture
def scene(play, text_task):
    return lambda defense, count=2, who="curious", trial=0: play(
        defense, who, count, "one_step(mode=eval)", trial=trial, task=text_task("bert", "", 64))


def read(door, count: int):
    """What is read in the end."""
    *_, last = crowd.read(door, count, Rng(1), Course())
    return last


def truths(here) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != NOTHING) for row in here.secret.readings.tolist()]


def test_reads_every_sentence(scene):
    here = scene("noise(relative=0.3)")
    found = read(entrance(here.seen), 2)
    assert sorted(found.sentences) == sorted(truths(here))
    labels = dict(zip(truths(here), here.secret.labels.tolist(), strict=True))
    assert found.labels == tuple(labels[sentence] for sentence in found.sentences)
    assert not any(any(row) for row in found.certain)


def test_a_model_that_says_the_next_word_is_read_too(play):
    here = play("noise(relative=0.1)", "curious", 2, task="text(model=transformer3(width=64), data=sentences, limit=8)")
    found = read(entrance(here.seen), 2)
    assert sorted(found.sentences) == sorted(truths(here))


def test_what_is_told_is_used(scene):
    here = scene("noise(relative=0.3)", who="curious+labels+lengths", count=3)
    found = read(entrance(here.seen), 3)
    assert sorted(map(len, found.sentences)) == sorted(map(len, truths(here)))
    assert sorted(found.labels) == sorted(here.secret.labels.tolist())


def test_the_words_are_found_before_their_places(scene):
    here = scene("noise(relative=0.3)")
    pool, _ = crowd.gathered(likely.hearings(entrance(here.seen), Rng(1))[-1], 2)
    assert {token for sentence in truths(here) for token in sentence[1:-1]} <= set(pool.tolist())


def test_a_changed_sentence_is_judged_as_the_whole_batch_would_be(scene):
    here = scene("noise(relative=0.3)")
    judge, (one, other) = Judge(entrance(here.seen)), truths(here)
    company = Company((one, other), tuple(here.secret.labels.tolist()))
    rivals = [(*one[:2], 7, *one[3:]), (*one[:2], 9, *one[3:]), (*one[:2], *one[3:]), (*one[:2], 9, *one[2:])]
    alone, whole = judge.instead(company, 0, rivals), judge.companies([company.but(0, each) for each in rivals])
    assert alone == pytest.approx(whole, rel=1e-3) and max(whole) < judge.companies([company])[0]


def test_what_reaches_early_layers_tells_words_orders_and_company(scene, monkeypatch):
    """Without labels, and without a replay: the truth explains more than any sentence near it."""
    here = scene("noise(relative=0.3)")
    search, (one, other) = likely.hearings(entrance(here.seen), Rng(1))[-1], truths(here)
    pool, seat = crowd.gathered(search, 2)
    echo = Echo(search, pool, len(one) + len(other), seat, Rng(2))
    swapped, crossed = (*one[:1], *one[2:0:-1], *one[3:]), one[:2] + other[2:3] + one[3:]
    rivals = [one, swapped, crossed, (*one[:2], *one[3:]), (*one[:2], 7, *one[2:])]
    scores = echo.instead(Company((one, other), None), 0, rivals)
    assert max(scores) == scores[0] == pytest.approx(echo.companies([Company((one, other), None)])[0], rel=1e-5)
    monkeypatch.setattr("gradleak.attacks.exact.echo.REMEMBERED", 5)
    another = (*one[:2], 9, *one[3:])
    echo.instead(Company((one, other), None), 0, [another])
    assert set(echo._rows) == {other, another}  # the rest was forgotten, and is found again
    assert echo.instead(Company((one, other), None), 0, rivals) == pytest.approx(scores, rel=1e-5)
    monkeypatch.setattr("gradleak.attacks.exact.echo.COMPARED", 2)  # so that the last is compared alone
    assert echo.instead(Company((one, other), None), 0, rivals) == pytest.approx(scores, rel=1e-6)


def test_what_a_sentence_explains_is_its_own_whoever_is_compared_with_it() -> None:
    rows = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0])[:, None, None]
    energy = torch.eye(8)
    alone, beside = (_explained(energy, [], some)[0] for some in (rows[:1], rows))
    padded = _explained(energy, [], torch.cat([rows[:1], torch.zeros(1, 5, 8)], 1))[0]
    assert alone == pytest.approx(3, rel=1e-2)
    assert [float(beside), float(padded)] == pytest.approx([float(alone)] * 2, rel=1e-6)


def test_words_are_at_an_end_where_they_add_no_more_than_absent_ones(scene, monkeypatch):
    """Signs leave energy everywhere: more of it than noise of the same level would."""
    monkeypatch.setattr(crowd, "LONGEST", 12)  # a tiny model has few places: half of them must tell of absent words
    here = scene("sign")
    search = likely.hearings(entrance(here.seen), Rng(1), crowd.LONGEST)[-1]
    pool, seat = crowd.gathered(search, 2)
    words = {token for sentence in truths(here) for token in sentence[1:-1]}
    assert len(words & set(pool.tolist())) >= 0.8 * len(words)
    assert seat > crowd.HEARD * search.heard.level
    assert max(search.ends(settling.ENDS)) <= crowd.LONGEST


@pytest.mark.parametrize("twice", [False, True], ids=["all different", "one chosen twice"])
def test_exchanges_are_judged_without_solving_anew(twice: bool) -> None:
    stream = Rng(3)
    vectors = stream.normal((20, 30), torch.zeros(())).double() + 0.3
    energy = torch.linalg.inv(vectors.mT @ vectors + torch.eye(30))
    chosen = torch.tensor([*range(7), 6 if twice else 7])
    seats, there, back = torch.tensor([[1, 2], [0, 5], [4, 6]]), [10, 5, 12], [11, 0, 13]
    found = replaced(energy, vectors[chosen], seats, (vectors[there], vectors[back]))
    for value, (a, b), one, other in zip(found, seats.tolist(), there, back, strict=True):
        after = chosen.clone()
        after[a], after[b] = one, other
        assert float(value) == pytest.approx(explained(energy, vectors[torch.unique(after)]), rel=1e-5)


def test_a_sentence_is_read_again_out_of_what_the_others_leave(scene):
    here = scene("prune(keep=0.3)")
    door, (one, other), labels = entrance(here.seen), truths(here), tuple(here.secret.labels.tolist())
    judge, wrong = Judge(door), Company((one, (*other[:2], *other[3:1:-1], 9, *other[-1:])), labels)
    (score,) = judge.companies([wrong])
    found = crowd.reread(door, judge, wrong, score, Rng(1))
    assert judge.gaps and not judge.entire(score) and found == Company((one, other), labels)
    assert judge.entire(judge.companies([found])[0])
    assert crowd.reread(door, judge, found, judge.companies([found])[0], Rng(1)) is None


@pytest.mark.parametrize("who", ["curious+labels+lengths", "curious"])
def test_what_is_told_stays_told_where_a_sentence_is_read_again(scene, who: str):
    here = scene("prune(keep=0.3)", who=who)
    door, labels = entrance(here.seen), tuple(here.secret.labels.tolist())
    company = Company(tuple(truths(here)), labels)
    rest = crowd._rest(door, Judge(door), company, 1).seen
    known = {know: rest.facts[know] for know in rest.facts}
    told = {Know.LENGTHS: [len(company.sentences[1])], Know.LABELS: [labels[1]]} if who != "curious" else {}
    assert known.pop(Know.COUNT) == 1 and {know: value.tolist() for know, value in known.items()} == told
    alone = Judge(door).given(Company(company.sentences[1:], labels[1:]))
    for name, value in rest.update.items():  # and what is left is that sentence's own, where anything was sent
        assert torch.allclose(value, alone[name] / 2 * (door.seen.update[name] != 0), atol=1e-6)


def test_of_next_words_the_rest_is_weighed_by_words(play, tmp_path):
    (tmp_path / "two.tsv").write_text("0\tthe cat sat on the old mat\n1\tit rained\n")
    here = play("prune(keep=0.5)", "curious", 2,
                task=f"text(model=transformer3(width=64), data=lines('{tmp_path / 'two.tsv'}'))")
    door, sentences = entrance(here.seen), tuple(truths(here))
    assert len(sentences[0]) != len(sentences[1])
    rest = crowd._rest(door, Judge(door), Company(sentences, None), 0).seen
    (left,) = Judge(replace(door, seen=rest)).companies([Company(sentences[:1], None)])
    assert Judge(replace(door, seen=rest)).entire(left)


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
    slopes = torch.zeros(2, 6, 30)

    def tried(company: Company) -> settling.Tried:
        words = [[*range(10, 24)]] * 8
        return {(which, rival): 0.0 for which, sentence in enumerate(company.sentences) if told is None
                for rival in settling.resized(sentence, words, search)}

    def found(company: Company) -> list[Company]:
        return settling.strayed(company, search, slopes, tried(company))

    assert truth in found(exchanged) and truth not in found(truth)
    assert (truth in found(moved)) == (told is None)


def test_the_most_promising_strays_come_first(monkeypatch) -> None:
    monkeypatch.setattr(settling, "STRAYED", 1)
    search = SimpleNamespace(opening=(1,), closing=(2,), told=None, possible=lambda length: 3 <= length <= 9)
    company, slopes = Company(((1, 10, 11, 2), (1, 20, 21, 2)), (0, 1)), torch.zeros(2, 4, 30)
    slopes[0, 2, 20] = slopes[1, 1, 11] = 1
    tried = {(0, (1, 11, 2)): 1.0, (1, (1, 20, 10, 21, 2)): 5.0, (1, (1, 20, 21, 10, 2)): 1.0}
    assert settling.strayed(company, search, slopes, tried) == [
        Company(((1, 11, 2), (1, 20, 10, 21, 2)), (0, 1)), Company(((1, 10, 20, 2), (1, 11, 21, 2)), (0, 1))]


def test_neighbours_change_together_into_what_promises_the_most(monkeypatch) -> None:
    monkeypatch.setattr(settling, "PROMISING", 2)
    promise = {(1, 20): 1.0, (1, 21): 3.0, (1, 22): 2.0, (2, 23): -1.0, (4, 24): 9.0, (5, 25): -5.0}
    found = set(settling.paired((1, 10, 11, 12, 13, 14, 2), promise))
    assert found == {(1, 21, 23, 12, 13, 14, 2), (1, 22, 23, 12, 13, 14, 2), (1, 10, 11, 12, 24, 25, 2)}


class Both:
    """Words that help together only, as `to be` does: one of them alone is as unlikely as any other."""

    def __init__(self, truth: Company) -> None:
        self.truth = truth

    def companies(self, many):
        return [1000.0 * (each == self.truth) for each in many]

    def instead(self, company, which, rivals):
        return self.companies([company.but(which, rival) for rival in rivals])

    def slopes(self, company):
        return torch.zeros(1, 6, 40).index_fill(2, torch.tensor([30, 31]), 1.0)

    def entire(self, score):
        return score > 0

    def quiet(self, company, score):
        return False


def framed():
    """A search of sentences of six tokens, which are told."""
    door = SimpleNamespace(vocabulary=SimpleNamespace(opening=(1,), closing=(2,), table=torch.zeros(40, 1)))
    return SimpleNamespace(opening=(1,), closing=(2,), told=torch.tensor([6]), door=door, possible=lambda _: False)


def test_two_words_that_help_together_only_are_found() -> None:
    truth = Company(((1, 10, 30, 31, 13, 2),), None)
    wrong, pool = Company(((1, 10, 11, 12, 13, 2),), None), torch.tensor([10, 11, 12, 13, 30, 31])
    company, _ = settling.Settling(framed(), Both(truth), wrong, pool).settled(Rng(0))
    assert company == truth


@pytest.mark.parametrize("helped", [True, False])
def test_a_word_leaves_for_another_elsewhere_that_comes_near(helped: bool) -> None:
    truth, wrong = Company(((1, 11, 12, 13, 35, 2),), None), Company(((1, 10, 11, 12, 13, 2),), None)
    near = torch.zeros(1, 6, 40).index_fill(2, torch.tensor([35]), 1.0)
    pool = torch.tensor([10, 11, 12, 13])
    told = settling.Settling(framed(), Both(truth), wrong, pool, near=(lambda _: near) if helped else None)
    assert (told.settled(Rng(0))[0] == truth) == helped


def test_words_slide_between_the_one_that_leaves_and_the_one_that_comes() -> None:
    found = list(settling.slid((1, 10, 11, 12, 2), range(1, 4), [[], [20], [], [21], []]))
    assert {(1, 11, 12, 20, 2), (1, 11, 12, 21, 2), (1, 20, 10, 11, 2), (1, 21, 10, 11, 2)} <= set(found)
    assert all(len(each) == 5 and each[0] == 1 and each[-1] == 2 for each in found)


def test_a_word_that_is_missing_comes_near(scene) -> None:
    here = scene("noise(relative=0.3)")
    door, (one, other) = entrance(here.seen), truths(here)
    labels, place = tuple(here.secret.labels.tolist()), 3
    wrong = (*one[:place], one[place] + 7, *one[place + 1 :])
    near = Judge(door).near(Company((wrong, other), labels))
    assert one[place] in near[0, place].topk(settling.NEARBY).indices
    assert near[0, place, wrong[place]] == -torch.inf
    assert not near[..., ~door.vocabulary.usable].isfinite().any()


def test_a_lost_sentence_is_written_anew_with_its_length_and_label(scene) -> None:
    here = scene("noise(relative=0.03)")
    door, (one, other) = entrance(here.seen), truths(here)
    judge, search = Judge(door), likely.hearings(door, Rng(1))[-1]
    labels = tuple(here.secret.labels.tolist())
    lost = Company((one, (other[0], one[1], other[-1])), (labels[0], 1 - labels[1]))
    pool, _ = crowd.gathered(search, 2)
    (rival,) = [each for each in settling.anew(search, lost, 1, pool) if len(each) == len(other)]
    assert sum(a == b for a, b in zip(rival, other, strict=True)) >= len(other) - 2
    found, _ = settling.Settling(search, judge, lost, pool).settled(Rng(0))
    assert sorted(zip(found.sentences, found.labels, strict=True)) == sorted(zip((one, other), labels, strict=True))


def test_guesses_that_end_alike_are_begun_once(scene, monkeypatch):
    door = entrance(scene("prune(keep=0.3)").seen)
    search = likely.hearings(door, Rng(1))[-1]
    pool, _ = crowd.gathered(search, 2)
    monkeypatch.setattr(crowd, "sifted", lambda _, pool, lengths: Seated(lengths, ((int(pool[0]), 1),) * 2))
    monkeypatch.setattr(crowd, "parted", lambda *_: [])
    for guesses, times in ([(6, 7), (6, 7)], 1), ([(6, 7), (5, 7)], 2):
        assert len(list(crowd._beginnings(door, search, pool, guesses, gaps=True, rng=Rng(1)))) == times
    orders = iter([((5, 1), (6, 2)), ((6, 2), (5, 1))])
    monkeypatch.setattr(crowd, "sifted", lambda *_: Seated((4,), next(orders)))
    assert len(list(crowd._beginnings(door, search, pool, [(6,), (7,)], gaps=True, rng=Rng(1)))) == 1


@pytest.mark.parametrize(("defense", "widths"), [
    ("prune(keep=0.3)", ["Echo sized", "Judge", "Echo sized", "Judge", "Judge wide"]),
    ("noise(relative=0.3)", ["Echo wide", "Judge wide"])])
def test_of_several_beginnings_the_best_alone_is_searched_widely(scene, monkeypatch, defense: str, widths: list[str]):
    calls = []

    class Watched(crowd.Settling):
        def turns(self, rng: Rng, wide: bool = True, past: settling.Turn | None = None):
            sized = self.search.told is not None
            assert not sized or self.search.told.tolist() == [len(each) for each in self.company.sentences]
            calls.append(type(self.judge).__name__ + " sized" * sized + " wide" * wide)
            return iter(())

    monkeypatch.setattr(crowd, "Settling", Watched)
    monkeypatch.setattr(crowd, "reread", lambda *_: None)
    monkeypatch.setattr(crowd, "_lengths", lambda *_: [(6, 7), (5, 7)])
    monkeypatch.setattr(crowd, "sifted", lambda search, pool, lengths: Seated(  # which would lead to one end
        lengths, tuple(seating(search, pool, lengths).best()[0])))
    read(entrance(scene(defense).seen), 2)
    assert calls == widths


@pytest.mark.parametrize("helps", [False, True])
def test_the_same_batch_is_read_again_once_only(scene, monkeypatch, helps: bool):
    asked = []

    class Idle(crowd.Settling):
        def turns(self, rng: Rng, wide: bool = True, past: settling.Turn | None = None):
            return iter(())

    def reread(door, judge, company, score, rng):
        asked.append(company)
        return truth if helps else None

    here = scene("prune(keep=0.3)")
    door, truth = entrance(here.seen), Company(tuple(truths(here)), tuple(here.secret.labels.tolist()))
    judge, wrong = Judge(door), truth.but(0, truth.sentences[0][::-1])
    monkeypatch.setattr(crowd, "reread", reread)
    best = Idle(likely.hearings(door, Rng(1), crowd.LONGEST)[-1], judge, wrong, torch.arange(5))
    list(crowd._exhausted(door, judge, best, Rng(1), Course()))
    assert asked == [wrong] and best.company == (truth if helps else wrong)


@pytest.mark.parametrize(("mode", "deciding"), [("train", "Doubting"), ("eval", "Judge")])
def test_replays_of_a_client_that_drops_do_not_decide_alone(play, text_task, monkeypatch, mode: str, deciding: str):
    here = play("noise(relative=0.3)", "curious", 2, f"one_step(mode={mode})", task=text_task("bert", "", 64))
    judges = []

    class Watched(crowd.Settling):
        def turns(self, rng: Rng, wide: bool = True, past: settling.Turn | None = None):
            judges.append(self.judge)
            return islice(super().turns(rng, wide, past), 2)

    monkeypatch.setattr(crowd, "Settling", Watched)
    read(entrance(here.seen), 2)
    assert [type(judge).__name__ for judge in judges] == ["Echo", deciding]
    if deciding == "Doubting":
        sentences = truths(here)
        one, other = Company(tuple(sentences), (0, 1)), Company(tuple(sentences), (1, 1))
        heard, doubted, replayed = ([judge.companies([each])[0] for each in (one, other)]
                                    for judge in (judges[0], judges[1], judges[1].judge))
        assert doubted == pytest.approx([a + crowd.WORTH * b for a, b in zip(heard, replayed, strict=True)])
        assert judges[1].instead(one, 0, sentences[:1]) == pytest.approx(doubted[:1], rel=1e-4)
        assert heard[0] == heard[1] and doubted[0] != doubted[1]  # labels are told by replays alone
