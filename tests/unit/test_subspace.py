"""Reading a clean update exactly: the dictionary, membership, decoders token by token, encoders by peeling."""

from dataclasses import replace

import pytest
import torch

from gradleak import registry
from gradleak.attacks.exact import causal, peeling
from gradleak.attacks.exact.affinity import attention
from gradleak.attacks.exact.assembly import Assembly, bonds
from gradleak.attacks.exact.board import Board
from gradleak.attacks.exact.classified import classified
from gradleak.attacks.exact.drafting import DONE, SWEPT, Drafting
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.labelling import paired
from gradleak.attacks.exact.left import Left
from gradleak.attacks.exact.members import members
from gradleak.attacks.exact.span import ROUNDING, span, stacked
from gradleak.attacks.exact.transport import shares
from gradleak.calculus import layout, peek, precise
from gradleak.errors import Unsuited
from gradleak.probe import probe
from gradleak.report.sentences import compared
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Guess, Know

FAMILIES = ("bert", "roberta", "gpt2")
WIDE = 96


@pytest.fixture
def scene(play, text_task):
    """A round of a tiny model, wide enough for its tokens to be told apart."""

    def played(family: str = "bert", count: int = 1, who: str = "curious", more: str = "", trial: int = 0,
               width: int = WIDE, defense: str = "none"):
        return play(defense, who, count, "one_step(mode=eval)", trial, task=text_task(family, more, width))

    return played


def truths(secret) -> set[tuple[int, ...]]:
    return {tuple(token for token in row.tolist() if token != NOTHING) for row in secret.readings}


def attacked(seen) -> Guess:
    (guess,) = registry.build("attack", parse("subspace")).guesses(seen, Rng(0))
    return guess


def test_span_has_the_rank_of_what_was_given_and_says_when_it_cannot_tell() -> None:
    x = (Rng(0) / "x").normal((7, 40), torch.zeros(1)).double()
    d = (Rng(0) / "d").normal((90, 7), torch.zeros(1)).double()
    clean = (d @ x).float().double()
    found = span(clean)
    assert (found.rank, found.clean) == (7, True)
    assert float(found.off(x).max()) < 100 * ROUNDING < float(found.off(torch.eye(40)).min())
    noise = (Rng(0) / "noise").normal((90, 40), torch.zeros(1)).double()
    assert not span(clean + 0.01 * noise).clean
    assert not span(noise).clean and not span(noise.mT).clean


@pytest.mark.parametrize("family", FAMILIES)
def test_peek_sees_what_the_layer_is_given(scene, family: str) -> None:
    seen = scene(family).seen
    batch = probe(seen, 2, Rng(1))
    groups = layout(seen.replay, batch)
    first, later = groups[0][0], groups[-1][0]
    with torch.no_grad():
        update = seen.replay(batch)
    for layer in (first, later):
        (x,) = peek(seen.replay, batch, layer.name)
        rows = stacked(update, (layer,))
        inside = span(x.double().reshape(-1, x.shape[-1]))
        assert float((rows @ inside.rest).norm()) < 1e-3 * float(rows.norm())  # a gradient's rows mix its inputs
    (wide,) = precise(seen.replay, batch, first.name)
    assert torch.allclose(wide.float(), update[first.name], rtol=1e-3, atol=1e-6)
    assert wide.dtype == torch.float64


@pytest.mark.parametrize("family", FAMILIES)
def test_dictionary_is_what_the_model_computes(scene, family: str) -> None:
    door = entrance(scene(family).seen)
    tokens = torch.arange(6, 18).expand(3, -1).clone()
    tokens[1], tokens[2] = tokens[1].flip(0), tokens[2].roll(3)
    (given,) = door.reach(tokens, door.first[0].name)
    places = torch.arange(12).expand(3, -1)
    assert torch.allclose(door.atoms.vectors(tokens, places), given, rtol=1e-3, atol=1e-4)
    directions = torch.eye(door.atoms.width)[:, :5]
    for place in (0, 7):
        every = door.atoms.vectors(torch.arange(len(door.vocabulary.table)), torch.tensor(place))
        assert torch.allclose(door.atoms.along(directions)(place), every[:, :5].float(), atol=1e-4)
        assert torch.allclose(door.atoms.squares(place), every.square().sum(1).float(), rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_family_is_read_word_for_word_and_proven(scene, family: str, count: int) -> None:
    played = scene(family, count)
    guess = attacked(played.seen)
    assert {tuple(t for t in row.tolist() if t != NOTHING) for row in guess.reading} == truths(played.secret)
    assert guess.certain is not None and bool(guess.certain[guess.reading != NOTHING].all())
    with torch.no_grad():
        again = played.seen.replay(guess.batch)
    assert all(torch.allclose(again[name], value, atol=1e-5) for name, value in played.seen.update.items())


def test_labels_are_found_with_the_sentences(scene) -> None:
    played = scene(count=3)
    guess = attacked(played.seen)
    right = {tuple(t for t in row.tolist() if t != NOTHING): int(y)
             for row, y in zip(played.secret.readings, played.secret.labels, strict=True)}
    for row, label in zip(guess.reading, guess.batch.y, strict=True):
        assert right[tuple(t for t in row.tolist() if t != NOTHING)] == int(label)


def test_what_was_taken_away_is_not_there_any_more(scene) -> None:
    played = scene(count=2)
    left = peeling.Left(entrance(played.seen), 2)
    sentence = sorted(truths(played.secret))[0]
    assert left.prove(sentence) is not None
    assert left.prove(sentence) is None


def test_a_token_that_is_inside_again_does_not_stop_the_search(scene) -> None:
    door = entrance(scene(count=3).seen)
    left, assembly = Left(door, 3), Assembly(door, Rng(1))
    tokens = left.members(members(door))
    assembly.next(left, tokens)
    absent = int(next(token for token in door.vocabulary.usable.nonzero().flatten() if int(token) not in tokens[1]))
    again = assembly.drafting.narrowed(left, [here + [absent] * (place == 1) for place, here in enumerate(tokens)])
    assert all(len(sentence) > 1 for sentence, _ in again.tried(0))


def drafting(door, count: int, drafts: dict) -> tuple[Drafting, Left]:
    left, how = Left(door, count), attention(door)
    tokens = left.members(members(door))
    known = shares(door.atoms, left.stack(door.first), tokens)
    board = Board(door, left, known, bonds(door, how, known), tokens, Rng(1).numpy())
    return Drafting(board, drafts), left


def test_words_that_stand_in_each_others_places_are_exchanged(scene) -> None:
    """Choices one by one cannot mend them: in between a word would stand twice."""
    played = scene(count=6)
    door = entrance(played.seen)
    sentence = max(truths(played.secret), key=len)
    wrong = (sentence[0], sentence[2], sentence[1], *sentence[3:])
    found, _ = drafting(door, 6, {wrong: SWEPT})
    choices = [sorted({*here, *sentence}) if 0 < place < len(sentence) - 1 else here
               for place, here in enumerate(found.board.choices(len(sentence)))]
    mended = found.board.exchanged(torch.tensor(wrong), choices, lambda off: off.sqrt().mean(1))
    assert wrong != sentence and tuple(mended.tolist()) == sentence


def test_what_was_drafted_for_one_sentence_serves_the_next(scene) -> None:
    played = scene(count=3)
    door = entrance(played.seen)
    one, other, _ = sorted(truths(played.secret))
    before, left = drafting(door, 3, {one: SWEPT, other: SWEPT, (*other[:1], other[1], *other[1:-2], other[-1]): SWEPT})
    assert left.prove(one) is not None
    after = before.narrowed(left, left.members(members(door)))
    nearest, off = next(after.resumed())
    assert nearest == other and off < 1e-4 and left.prove(nearest) is not None


def test_a_draft_that_what_is_left_has_changed_is_worked_on_again(scene) -> None:
    played = scene(count=3)
    door = entrance(played.seen)
    one, other, _ = sorted(truths(played.secret))
    absent = next(token for token in range(8, 34) if token not in {*one, *other})
    wrong = (other[0], absent, *other[2:])
    before, left = drafting(door, 3, {wrong: DONE, other: DONE})
    tokens = [[token] for token in other]
    assert before.narrowed(left, tokens).effort == {other: DONE}
    alone, left = drafting(door, 3, {wrong: DONE})
    after = alone.narrowed(left, tokens)
    assert after.effort == {other: SWEPT}
    assert (other, pytest.approx(0, abs=1e-3)) in list(after.resumed())


def test_a_survey_puts_the_true_word_of_a_place_first(scene) -> None:
    played = scene(count=6)
    door = entrance(played.seen)
    sentence = max(truths(played.secret), key=len)
    found, _ = drafting(door, 6, {})
    choices = [[*range(8, 34), token] if 0 < place < len(sentence) - 1 else [token]
               for place, token in enumerate(sentence)]
    draft = [*sentence[:2], sentence[1], *sentence[3:]]
    ranked = found.board.surveyed(draft, choices)
    assert ranked[2][0] == sentence[2] and sorted(ranked[2]) == sorted(choices[2])


def test_an_absent_sentence_is_never_proven(scene) -> None:
    played = scene(count=2)
    door = entrance(played.seen)
    for sentence in sorted(truths(played.secret)):
        wrong = list(sentence)
        wrong[1], wrong[2] = wrong[2], wrong[1]
        if tuple(wrong) != sentence:
            assert peeling.Left(door, 2).prove(tuple(wrong)) is None


@pytest.mark.parametrize("trial", range(4))
def test_absent_tokens_are_not_members(scene, trial: int) -> None:
    played = scene(trial=trial)
    found = members(entrance(played.seen))
    (sentence,) = truths(played.secret)
    assert found.pairs == [(token, place) for place, token in enumerate(sentence)]
    assert found.nearest > 1e-3 and found.tests >= len(sentence) * 20


def test_trained_words_are_read_too(scene) -> None:
    played = scene(more=", embeddings=trained")
    assert {tuple(row.tolist()) for row in attacked(played.seen).reading} == truths(played.secret)


def test_decoders_are_known_by_what_they_compute(scene) -> None:
    assert causal.is_causal(entrance(scene("gpt2").seen))
    assert not causal.is_causal(entrance(scene("bert").seen))


def test_more_tokens_than_dimensions_prove_nothing(scene) -> None:
    played = scene(count=6, width=16)
    try:
        guess = attacked(played.seen)
    except Unsuited as problem:
        assert "dimensions" in str(problem)
    else:
        assert guess.certain is None or not bool(guess.certain.any())


def test_images_go_to_the_image_half(play) -> None:
    with pytest.raises(Unsuited):
        attacked(play(who="curious").seen)


def test_an_entrance_needs_text(play) -> None:
    with pytest.raises(Unsuited, match="images"):
        entrance(play().seen)


def test_labels_go_to_the_sentences_they_fit(scene) -> None:
    played = scene(count=4)
    sentences = [tuple(token for token in row.tolist() if token != NOTHING) for row in played.secret.readings]
    labels = played.secret.labels
    assert len(set(labels.tolist())) == 2
    assert torch.equal(paired(entrance(played.seen), sentences, labels.sort().values), labels)


@pytest.mark.parametrize(("who", "right"), [("curious", True), ("curious+labels", False)])
def test_labels_that_were_miscounted_are_mended_those_that_were_told_are_not(play, text_task, who: str, right: bool):
    played = play("none", who, 4, "one_step(mode=eval)", task=text_task())
    sentences = [tuple(token for token in row.tolist() if token != NOTHING) for row in played.secret.readings]
    labels = played.secret.labels
    wrong = torch.zeros_like(labels)
    found = paired(entrance(played.seen), sentences, wrong)
    assert torch.equal(found, labels if right else wrong) and not torch.equal(labels, wrong)
    for place in range(4):  # one label miscounted, both still there: those told are only put in order
        near = labels.clone()
        near[place] = 1 - near[place]
        found = paired(entrance(played.seen), sentences, near)
        assert torch.equal(found, labels) if right else torch.equal(found.sort().values, near.sort().values)
    other = [(*each[:1], *each[2:], each[1]) for each in sentences]  # other words: nothing explains the layer
    assert torch.equal(paired(entrance(played.seen), other, wrong), wrong)


def test_labels_that_are_all_one_need_no_last_layer(play, text_task) -> None:
    seen = play("none", "curious+labels", 1, "one_step(mode=eval)", task=text_task()).seen
    body = {name: value for name, value in seen.update.items() if not name.startswith("classifier")}
    assert len(body) < len(seen.update)
    guess = attacked(replace(seen, update=body))
    assert torch.equal(guess.batch.y, seen.facts[Know.LABELS].flatten())


def test_a_client_that_takes_examples_in_turn_is_asked_one_by_one(play, text_task) -> None:
    tokens = torch.arange(6, 14).view(2, 4)
    found = []
    for client in ("one_step(mode=eval)", "local_steps(steps=2, rate=0.01, mode=eval)"):
        door = entrance(play("none", "curious", 2, client, task=text_task("bert", "", WIDE)).seen)
        found.append(door.reach(tokens, door.first[0].name, door.middle[0].name))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5) and one.shape == (2, 4, WIDE)


def test_a_report_tells_certain_from_likely(scene) -> None:
    words = scene().seen.vocabulary
    truth = torch.tensor([2, 5, 7, 9, 3])
    reading, certain = words.sentence(torch.tensor([2, 5, 8, 9, 3])), [True, False, True]
    said = compared(reading, words.sentence(truth), words, certain)
    assert [word.certain for word in said.words] == certain and said.certain == 2
    assert compared(reading, words.sentence(truth), words).certain == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_model_that_says_the_next_word_is_read_too(play, count: int) -> None:
    played = play(task="text(model=transformer3(width=64), data=sentences, limit=8)", who="curious", count=count)
    guess = attacked(played.seen)
    assert {tuple(row.tolist()) for row in guess.reading} == truths(played.secret)
    assert residual(played.seen, guess.batch).cosine < 1e-6


def test_more_tokens_than_dimensions_are_told_by_what_is_classified(scene) -> None:
    """The deeper layers are full; the last one is asked by one token a sentence, and that one knows every word."""
    here = scene(count=6, width=40)
    door = entrance(here.seen)
    assert door.span.clean and not door.deep.clean and int((here.secret.readings != NOTHING).sum()) > 40
    layer = classified(door, 6)
    assert layer is not None
    within = span(stacked(here.seen.update, (layer,)))
    assert within.rank == 6
    for sentence in truths(here.secret):
        (sent,) = door.reach(torch.tensor([sentence]), layer.name)
        assert float(within.off(sent[0, 0])) < 1e-5
        wrong = torch.tensor([(*sentence[:2], sentence[1], *sentence[3:])])
        (sent,) = door.reach(wrong, layer.name)
        assert tuple(wrong[0].tolist()) in truths(here.secret) or float(within.off(sent[0, 0])) > 1e-3


def test_sentences_are_proven_beyond_dimensions_until_the_rest_fits(scene) -> None:
    here = scene(count=6, width=40)
    left = Left(entrance(here.seen), 6)
    assert left.asked and left.tokens == 6
    by = dict(zip(map(tuple, (row[row != NOTHING].tolist() for row in here.secret.readings)),
                  here.secret.labels.tolist(), strict=True))
    first, *others = by
    assert left.prove((*first[:2], first[1], *first[3:])) is None and left.tokens == 6
    assert left.prove(first) == by[first]
    while left.asked:
        assert left.tokens == 1 + len(others)
        sentence = others.pop()
        assert left.prove(sentence) == by[sentence]
    assert left.tokens == sum(map(len, others)) < 40
    for sentence in others:
        assert left.prove(sentence) == by[sentence]
    assert left.tokens == 0


def test_beyond_dimensions_the_best_single_change_mends_a_draft(scene) -> None:
    here = scene(count=6, width=40)
    sentence = max(truths(here.secret), key=len)
    found, _ = drafting(entrance(here.seen), 6, {})
    assert found.board.asked
    choices = [sorted({*range(8, 30), *sentence[1:-1]}) if 0 < place < len(sentence) - 1 else [token]
               for place, token in enumerate(sentence)]
    other = next(token for token in choices[2] if token != sentence[2])
    for wrong in ((*sentence[:2], other, *sentence[3:]), (sentence[0], sentence[2], sentence[1], *sentence[3:])):
        mended, off = found.board.changed(torch.tensor(wrong), choices, choices)
        assert wrong != sentence and tuple(mended.tolist()) == sentence and off < 1e-4


def test_a_batch_beyond_dimensions_is_read_and_proven(scene) -> None:
    here = scene(count=6, width=40)
    guess = attacked(here.seen)
    proven = {tuple(row[row != NOTHING].tolist()) for row, sure in zip(guess.reading, guess.certain, strict=True)
              if bool(sure.any())}
    assert proven == truths(here.secret)
