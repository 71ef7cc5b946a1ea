"""What sentences leave of a noisy update: noise alone, or words."""

import pytest
import torch

from gradleak.attacks.exact import judge, settling
from gradleak.attacks.exact.echo import Echo
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.judge import SURE, Company, Judge
from gradleak.attacks.exact.likely import hearings
from gradleak.attacks.exact.remainder import Remainder, remainder
from gradleak.attacks.exact.settling import Settling
from gradleak.attacks.exact.subspace import Words
from gradleak.capture.recover import Outcome
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.types import NOTHING, Batch

pytest.importorskip("transformers")


@pytest.fixture
def scene(play, text_task):
    return lambda defense, trial=0, model="bert": play(
        defense, "curious", 2, "one_step(mode=eval)", trial=trial, task=text_task(model, "", 64))


def told(here) -> Company:
    rows = here.secret.readings.tolist()
    return Company(tuple(tuple(t for t in row if t != NOTHING) for row in rows), tuple(here.secret.labels.tolist()))


def left(judge: Judge, company: Company) -> float:
    x, y, extra = judge._together(company, max(map(len, company.sentences)))
    found = remainder(judge.door, Batch(x, y, extra), judge.given(company))
    return found.more / found.chance


def quiet(judge: Judge, company: Company) -> bool:
    return judge.quiet(company, judge.companies([company])[0])


@pytest.mark.parametrize("trial", range(4))
def test_the_truth_leaves_noise_alone(scene, trial: int) -> None:
    here = scene("noise(relative=0.3)", trial)
    judge, truth = Judge(entrance(here.seen)), told(here)
    one = truth.sentences[0]
    wrong = [one[:2] + one[3:], (one[0], one[2], one[1], *one[3:]), (*one[:2], one[2] + 1, *one[3:])]
    assert abs(left(judge, truth)) < SURE and quiet(judge, truth)
    for sentence in wrong:
        assert left(judge, truth.but(0, sentence)) > 2 * SURE and not quiet(judge, truth.but(0, sentence))


def test_behind_noise_that_hides_everything_nothing_is_concluded(scene) -> None:
    here = scene("noise(relative=100)")
    judge, truth = Judge(entrance(here.seen)), told(here)
    other = truth.but(0, tuple(token + 1 for token in truth.sentences[0]))
    assert abs(left(judge, other)) < SURE and not quiet(judge, other)


def test_what_rounding_leaves_is_not_taken_for_noise(scene, monkeypatch) -> None:
    """However little it seems to be."""
    for defense in ("sign", "prune(keep=0.5)"):
        here = scene(defense)
        assert not quiet(Judge(entrance(here.seen)), told(here))
    monkeypatch.setattr(judge, "remainder", lambda door, batch, given: Remainder(0.0, 1e-9))
    for defense, alone in (("sign", False), ("prune(keep=0.5)", False), ("noise(relative=0.3)", True)):
        here = scene(defense)
        assert quiet(Judge(entrance(here.seen)), told(here)) == alone


def test_forms_are_what_the_vectors_give(scene) -> None:
    atoms = entrance(scene("none").seen).atoms
    root = (Rng(3) / "root").normal((atoms.width, atoms.width), atoms.table).double()
    form, place = root @ root.mT, 5
    tokens = torch.arange(len(atoms.table))
    vectors = atoms.vectors(tokens, torch.full_like(tokens, place))
    assert atoms.forms(form)(place).tolist() == pytest.approx((vectors @ form * vectors).sum(1).tolist(), rel=1e-3)


def test_a_missing_word_is_called_for(scene) -> None:
    here = scene("noise(relative=0.3)")
    search, truth = hearings(entrance(here.seen), Rng(1))[-1], told(here)
    keys = [(token, place) for each in truth.sentences for place, token in enumerate(each)]
    missing = max((key for key in keys if keys.count(key) == 1), key=lambda key: key[1] == 2)
    known = search.door.atoms.vectors(*torch.tensor([key for key in keys if key != missing]).mT)
    assert missing[0] in search.called(known, range(1, 4), 3)[missing[1]]


def settled(here, pool: set[int], company: Company) -> Company:
    search, judge = hearings(entrance(here.seen), Rng(1))[-1], Judge(entrance(here.seen))
    words = torch.tensor(sorted(pool))
    echo = Echo(search, words, sum(map(len, company.sentences)), search.heard.level, Rng(2))
    return Settling(search, judge, company, words, echo).settled(Rng(3))[0]


def test_a_word_that_was_not_heard_is_put_in(scene, monkeypatch) -> None:
    """And without calling for words it is not."""
    here = scene("noise(relative=0.3)")
    truth = told(here)
    one = truth.sentences[0]
    pool = {token for each in truth.sentences for token in each[1:-1]} - {one[2]}
    start = truth.but(0, one[:2] + one[3:])
    monkeypatch.setattr(settling, "OTHERS", 0)
    assert settled(here, pool, start) == truth
    monkeypatch.setattr(settling, "CALLED", 0)
    assert settled(here, pool, start) != truth


def test_runs_of_words_move() -> None:
    """Every way to take a run out and put it in elsewhere, inside the frame, each once."""
    sentence = (101, 1, 2, 3, 4, 102)
    found = list(settling.shifted(sentence, range(1, 5)))
    rest = [(1, 2, 3, 4)[:a] + (1, 2, 3, 4)[b:] for a in range(4) for b in range(a + 1, 5)]
    runs = [(1, 2, 3, 4)[a:b] for a in range(4) for b in range(a + 1, 5)]
    wanted = {(101, *left[:at], *run, *left[at:], 102) for run, left in zip(runs, rest, strict=True)
              for at in range(len(left) + 1)} - {sentence}
    assert set(found) == wanted and len(found) == len(wanted)


def test_what_frames_sentences_is_not_tried_inside(scene) -> None:
    here = scene("noise(relative=0.3)")
    truth, judge = told(here), Judge(entrance(here.seen))
    search = hearings(entrance(here.seen), Rng(1))[-1]
    batch = Settling(search, judge, truth, torch.tensor([truth.sentences[0][1]]))
    choice = batch._every(torch.empty(0))
    tried = {token for sentence in choice.words for place in sentence for token in place}
    assert tried and not tried & {*search.opening, *search.closing}


def test_a_screen_that_likes_fewer_words_does_not_hide_longer_sentences(scene, monkeypatch) -> None:
    here = scene("noise(relative=0.3)")
    truth, judge = told(here), Judge(entrance(here.seen))
    search, one = hearings(entrance(here.seen), Rng(1))[-1], truth.sentences[0]
    start = truth.but(0, one[:2] + one[3:])

    class Short(Echo):
        def instead(self, company, which, rivals):
            return [-float(len(rival)) for rival in rivals]

    monkeypatch.setattr(settling, "SCREENED", 2)
    pool = torch.tensor(sorted({token for each in truth.sentences for token in each[1:-1]}))
    short = Short(search, pool, 20, search.heard.level, Rng(2))
    rivals = [(*one[:1], *one[place:]) for place in range(2, 5)] + [one] * 3
    scores = Settling(search, judge, start, pool, short)._judged(start, 0, rivals, screened=True).scores
    assert sum(score > -torch.inf for score in scores[3:]) == 2


@pytest.mark.parametrize(("relative", "explained"), [(0.3, True), (100, False)])
def test_a_captured_update_is_explained_but_for_noise(scene, relative: float, explained: bool) -> None:
    seen = scene(f"noise(relative={relative})").seen
    guess = list(Words().guesses(seen, Rng(1)))[-1]
    outcome = Outcome(guess, residual(seen, guess.batch), seen.vocabulary, ())
    assert outcome.explained == explained and ("explain the update but for noise" in outcome.said) == explained


def test_what_did_not_help_a_batch_is_not_tried_on_it_again(scene, monkeypatch) -> None:
    here = scene("noise(relative=0.3)")
    truth, renewed = told(here), list[Company]()
    monkeypatch.setattr(Judge, "quiet", lambda self, company, score: False)
    monkeypatch.setattr(Settling, "_renew", lambda self: renewed.append(self.company))
    assert settled(here, {token for each in truth.sentences for token in each[1:-1]}, truth) == truth == renewed[0]
    assert len(renewed) == 1
