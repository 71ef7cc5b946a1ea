"""What the client dropped as unknowns, words read with their places, the beam, and both in turn."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gradleak import registry
from gradleak.attacks.combine import Alternate
from gradleak.attacks.descent import Descent, Matching
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.labels import Known
from gradleak.attacks.parts.masks import WithMasks, dropping
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.attacks.search import Beam
from gradleak.errors import UsageError
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Batch

TRAIN = "one_step(mode=train)"
GIVEN = "curious+labels+lengths"


@pytest.fixture
def scene(play, text_task):
    def played(count: int = 1, who: str = GIVEN, client: str = TRAIN, trial: int = 0, defense: str = "none",
               family: str = "bert"):
        return play(defense, who, count, client, trial, task=text_task(family))

    return played


def matching(played, space: object | None = None, **more: object) -> Matching:
    plan = Descent(
        4, Known(), objectives.layer_cosine, space=space or WithMasks(), judge=objectives.layer_cosine, **more)
    return Matching(plan, played.seen, plan.labels.read(played.seen, Rng(0)), Rng(0))


def told(run: Matching, ids: Tensor, y: Tensor, beside: Tensor | None = None) -> Batch:
    batch = run.words.told(ids[None], y[None], None if beside is None else beside[None])
    return Batch(batch.x[0], batch.y[0], {name: value[0] for name, value in batch.extra.items()})


def in_order(played) -> tuple[Tensor, Tensor]:
    """The truth's rows as the told labels and lengths have them, and where each of them was."""
    rows, labels = played.secret.readings, played.secret.labels
    wide = (rows != NOTHING).sum(1)
    order = sorted(range(len(rows)), key=lambda i: (int(labels[i]), int(wide[i])))
    return rows[order], torch.tensor(order)


def true_masks(run: Matching, played, order: Tensor) -> Tensor:
    masks = run.words.masks
    assert masks is not None
    flat = masks.flat({name: value[order] for name, value in played.sent.masks.items()})
    assert flat is not None
    return flat


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_the_true_masks_explain_the_update_and_none_do_not(scene, family: str) -> None:
    played = scene(2, family=family)
    run, (rows, order) = matching(played), in_order(played)
    y = played.secret.labels[order]
    assert residual(played.seen, told(run, rows, y, true_masks(run, played, order))).l2 < 1e-4
    assert residual(played.seen, told(run, rows, y)).l2 > 0.01


def test_masks_of_every_site_are_unknowns_and_matching_stays_factored(scene) -> None:
    played = scene(2)
    run = matching(played)
    sites = played.seen.sites(played.secret.batch)
    assert run.room.beside == sum(torch.Size(site.shape).numel() for site in sites) > 0
    assert run.replay.way == "factored"
    z = run.begin(None)["z"]
    value = run.evaluator(0)(z)
    slope = value.gradient[:, run._beside]
    assert bool((slope != 0).float().mean() > 0.5)
    assert run.words.masks is not None
    assert torch.allclose(z[0, run._beside], run.words.masks.mean)


def test_masks_stay_between_nothing_and_all(scene) -> None:
    run = matching(scene(), rate=5.0)
    state = run.begin(None)
    for step in range(3):
        state = run.advance(state, step)
    beside = state["z"][:, run._beside]
    assert float(beside.min()) == 0 and float(beside.max()) == 1


@pytest.mark.parametrize("begin", ["mean", "drawn"])
def test_how_masks_begin(scene, begin: str) -> None:
    run = matching(scene(), WithMasks(begin=begin, share=0.3))
    beside = run.begin(None)["z"][0, run._beside]
    assert abs(float(beside.mean()) - 0.7) < 0.02
    assert set(beside.unique().tolist()) == ({0.0, 1.0} if begin == "drawn" else {float(torch.tensor(0.7))})


@pytest.mark.parametrize("client", ["one_step(mode=eval)", "local_steps(steps=2, rate=0.05)"])
def test_where_nothing_can_be_told_to_drop_there_are_no_masks(scene, client: str) -> None:
    assert matching(scene(client=client)).room.beside == 0


def test_drawn_masks_are_the_attackers_own_and_stay(scene) -> None:
    """As the client draws, but not what the client drew; nothing is searched for beside the words."""
    played = scene()
    run, again = (matching(played, dropping(Embeddings(), "drawn")) for _ in range(2))
    drawn = {name: value for name, value in run.room.extra(1).items() if name != "mask"}
    assert run.room.beside == 0 and drawn.keys() == played.sent.masks.keys()
    assert all(torch.equal(value, again.room.extra(1)[name]) for name, value in drawn.items())
    flat, real = (torch.cat([value.flatten() for value in masks.values()]) for masks in (drawn, played.sent.masks))
    assert set(flat.unique().tolist()) == {0.0, 1.0} and abs(float(flat.mean()) - 0.9) < 0.02
    assert not torch.equal(flat, real)


@pytest.mark.parametrize("spec", ["lamp(steps=2, dropout=drawn)", "tag(steps=2, dropout=drawn)",
                                  "tag(steps=2, dropout=learnt)", "lamp(steps=2, dropout=learnt)"])
def test_any_recipe_of_words_takes_drawn_or_learnt_masks(scene, spec: str) -> None:
    *_, last = registry.build("attack", parse(spec)).guesses(scene().seen, Rng(0))
    assert any(name.startswith("drop.") for name in last.batch.extra) and last.step == last.steps


def test_granted_masks_are_no_unknowns(scene) -> None:
    run = matching(scene(who=GIVEN + "+dropout"))
    assert run.room.beside == 0 and run.room.extra(1).keys() > {"mask"}


def test_masks_move_with_the_words(scene) -> None:
    """Attention does not see order: with the masks moved along and what their places add, words stand anywhere."""
    played = scene(2)
    run, (rows, order) = matching(played), in_order(played)
    flat, masks = true_masks(run, played, order), run.words.masks
    assert masks is not None
    new = torch.arange(rows.shape[1])
    new[[1, 2]] = torch.tensor([2, 1])  # its own inverse
    moved = masks.reordered(flat, 1, new)
    assert torch.equal(masks.reordered(moved, 1, new), flat) and not torch.equal(moved, flat)
    for name, value in masks.moved(flat, 1, new[None]).items():
        assert torch.equal(value[0], masks.extra(moved)[name][1])
    where = added(played)[: rows.shape[1]]
    swapped = run.words.embed(rows)
    swapped[1] = swapped[1][new] + where[new] - where
    for beside, right in ((moved, True), (flat, False)):
        batch = told(run, rows, played.secret.labels[order], beside)
        left = residual(played.seen, Batch(swapped, batch.y, batch.extra)).l2
        assert left < 1e-4 if right else left > 0.01


def added(played) -> Tensor:
    """What each place adds to the word in it."""
    net = played.world.learner.modes["eval"].net
    return net.get_submodule("bert.embeddings.position_embeddings").weight.detach()  # type: ignore[no-any-return]


def test_words_are_read_in_the_places_they_belong_to(scene) -> None:
    played = scene(client="one_step(mode=eval)")
    run = matching(played, Embeddings(placed=True))
    rows, places = played.secret.readings, run.words.places
    assert places is not None
    where = added(played)[: rows.shape[1]]
    order = torch.arange(rows.shape[1])
    order[1:-1] = order[1:-1].roll(2)
    # Every embedding elsewhere, with what its own place adds and this one does not.
    x = run.words.embed(rows)[:, order] + (where[order] - where)
    assert not torch.equal(run.words.read(x[None])[0], rows)
    ids, found = places(x)
    assert torch.equal(ids, rows)
    assert torch.equal(order[found[0]], torch.arange(rows.shape[1]))


def spoilt(rows: Tensor, token: int = 9) -> Tensor:
    wrong = rows.clone()
    wrong[0, 2] = token
    return wrong


@pytest.mark.parametrize("client", ["one_step(mode=eval)", TRAIN])
def test_a_beam_puts_a_wrong_word_right(scene, client: str) -> None:
    played = scene(2, client=client)
    run, (rows, order) = matching(played, beam=Beam()), in_order(played)
    y, beside = played.secret.labels[order], torch.zeros(0)
    if client == TRAIN:
        beside = true_masks(run, played, order)
    state = run.tell(run.begin(None), spoilt(rows), y, beside)
    better = run.plan.beam.improve(run, state, Rng(0))
    assert torch.equal(better["told.ids"], rows) and better["told.off"] < state["told.off"]


@pytest.mark.parametrize("more", [True, False])
def test_where_lengths_are_not_known_words_come_and_go(scene, more: bool) -> None:
    played = scene(2, "curious+labels", "one_step(mode=eval)")
    run, (rows, order) = matching(played, Embeddings(spare=4)), in_order(played)
    truth = torch.full(run.room.shape[:2], NOTHING)
    truth[:, : rows.shape[1]] = rows
    wrong, there = truth.clone(), truth[0][truth[0] != NOTHING]
    wrong[0] = NOTHING
    changed = torch.cat([there[:2], *([torch.tensor([9])] if more else []), there[2 if more else 3 :]])
    wrong[0, : len(changed)] = changed
    state = run.tell(run.begin(None), wrong, played.secret.labels[order])
    for sweep in range(3):
        state = Beam().improve(run, state, Rng(sweep))
    assert torch.equal(state["told.ids"], truth)


def test_labels_that_were_not_granted_are_exchanged(scene) -> None:
    played = next(made for made in (scene(2, "curious+lengths", "one_step(mode=eval)", trial) for trial in range(9))
                  if len(set(made.secret.labels.tolist())) == 2)
    run = matching(played, Embeddings())
    order = (played.secret.readings != NOTHING).sum(1).argsort(stable=True)
    rows, y = played.secret.readings[order], played.secret.labels[order]
    state = run.tell(run.begin(None), rows, y.flip(0))
    better = Beam().improve(run, state, Rng(0))
    assert torch.equal(better["told.y"], y) and torch.equal(better["told.ids"], rows)


def test_a_beam_heeds_a_list_of_words_a_place(scene) -> None:
    played = scene(client="one_step(mode=eval)")
    rows = played.secret.readings
    run = matching(played, Embeddings())
    given = tuple((int(token),) for token in rows[0])
    state = run.tell(run.begin(None), torch.where(run.words.inside, 9, rows), played.secret.labels)
    for sweep in range(3):
        state = Beam(own=1, moves=0, given=given).improve(run, state, Rng(sweep))
    assert torch.equal(state["told.ids"], rows)


def test_a_beam_tries_common_words_at_the_end_and_where_a_word_stands_twice(scene) -> None:
    played = scene(client="one_step(mode=eval)")
    run, rows = matching(played, Embeddings()), played.secret.readings
    inside = run.words.inside[0].nonzero().flatten().tolist()
    wrong = rows.clone()
    wrong[0, inside[-1]] = rows[0, inside[0]]
    words = run.words.vocabulary
    common = (words.piece(int(rows[0, inside[-1]])), "no token")
    assert run.words.nearest.spelt(common).tolist() == [int(rows[0, inside[-1]])]
    state = run.tell(run.begin(None), wrong, played.secret.labels)
    for tried, found in ((common, True), ((), False)):
        better = Beam(own=1, steep=0, moves=0, common=tried).improve(run, state, Rng(0))
        assert torch.equal(better["told.ids"], rows) == found


def test_a_beam_screens_and_judges_the_best_again(scene) -> None:
    played = scene(client="one_step(mode=eval)")
    run = matching(played, Embeddings(), screen=objectives.norms)
    assert run.rescoring is not None and run.rescoring.objective is objectives.layer_cosine
    state = run.tell(run.begin(None), spoilt(played.secret.readings), played.secret.labels)
    assert torch.equal(Beam().improve(run, state, Rng(0))["told.ids"], played.secret.readings)


def test_all_candidates_of_a_place_are_scored_at_once(scene, monkeypatch) -> None:
    played = scene(2, client="one_step(mode=eval)")
    run, (rows, order) = matching(played, Embeddings()), in_order(played)
    state = run.tell(run.begin(None), spoilt(rows), played.secret.labels[order])
    calls: list[int] = []
    plain = run.replay._take
    monkeypatch.setattr(run.replay, "_take", lambda way, x, *more: calls.append(len(x)) or plain(way, x, *more))
    Beam(4, own=0).improve(run, state, Rng(0))
    assert max(calls) > 20 and sum(calls) / len(calls) > 5


def rounds(many: int = 3, **more: object) -> Alternate:
    plan = Descent(3, Known(), objectives.layer_cosine, space=WithMasks(Embeddings(placed=True)), log=True, rate=0.02,
                   judge=objectives.layer_cosine, **more)
    return Alternate(plan, Beam(1, 1, own=2, steep=1, moves=1), many, 2)


def test_rounds_go_on_from_any_guess(scene) -> None:
    seen = scene(2, "curious").seen
    whole = list(rounds(2).guesses(seen, Rng(1)))
    steps = [guess.step for guess in whole]
    assert whole[-1].step == whole[-1].steps and steps == sorted(steps)
    for middle in (whole[1], whole[len(whole) // 2], whole[-2], whole[-1]):
        rest = [middle, *rounds(2).guesses(seen, Rng(1), middle)]
        assert torch.equal(rest[-1].reading, whole[-1].reading) and rest[-1].step == rest[-1].steps


def test_the_answer_never_gets_worse(scene) -> None:
    seen = scene(2).seen
    offs = [float(guess.state["inner.told.off"]) for guess in rounds(2).guesses(seen, Rng(1))]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(offs))


def test_words_that_explain_the_update_end_it(scene) -> None:
    played = scene(client="one_step(mode=eval)")
    batch = told(matching(played, Embeddings()), played.secret.readings, played.secret.labels)
    from gradleak.types import Guess

    (only,) = rounds().guesses(played.seen, Rng(0), Guess(batch, played.secret.readings))
    assert only.step == only.steps and torch.equal(only.reading, played.secret.readings)


@pytest.mark.parametrize("spec", ["grab(rounds=0)", "grab(steps=0)"])
def test_impossible_settings_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        registry.build("attack", parse(spec))


@pytest.mark.parametrize("spec", ["grab(masks=none)", "grab(masks=drawn)", "grab(published=true)", "grab(large=true)",
                                  "grab(objective=l2_l1)", "grab(share=0.2, trust=1)"])
def test_every_form_of_grab_runs(scene, monkeypatch, spec: str) -> None:
    attack = registry.build("attack", parse(spec.replace(")", ", steps=2, rounds=1, sweeps=1, width=1)")))
    from dataclasses import replace

    attack = replace(attack, descent=replace(attack.descent, starts=min(4, attack.descent.starts)))
    *_, last = attack.guesses(scene(2).seen, Rng(0))
    assert last.step == last.steps and residual(scene(2).seen, last.batch).cosine < 1.2


def test_grab_reads_through_dropout(scene) -> None:
    played = scene()
    *_, last = registry.build("attack", parse("grab(steps=60, rounds=2)")).guesses(played.seen, Rng(0))
    right = (last.reading == played.secret.readings).float().mean()
    assert float(right) > 0.7
    assert residual(played.seen, last.batch).cosine < residual(played.seen, played.secret.batch).cosine
