"""Words: where they are looked for, how they are rearranged and replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak import registry
from gradleak.attacks.descent import Descent, Matching
from gradleak.attacks.parts import moves, objectives
from gradleak.attacks.parts.labels import Known
from gradleak.attacks.parts.language import Silent
from gradleak.attacks.parts.lengths import lengths, rank, tokens
from gradleak.attacks.parts.priors import word_length
from gradleak.attacks.parts.sampled import Sampled
from gradleak.attacks.parts.tokens import Embeddings, Nearest, TokenRoom
from gradleak.attacks.search import Rearrange, Substitute
from gradleak.errors import Unsuited
from gradleak.factored import Reference
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Facts, Know, Observation, following

CLS, SEP = 2, 3


@dataclass(frozen=True)
class Prefers:
    """One text costs nothing, any other one."""

    text: str
    name: str = "prefers"

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([float(text != self.text) for text in texts], dtype=torch.float64)


@pytest.fixture
def scene(play, text_task):
    """One round; labels and lengths are told, and in the order of the truth where there is one sentence."""

    def played(count: int = 1, defense: str = "none", who: str = "curious+labels+lengths", trial: int = 0):
        return play(defense, who, count, "one_step(mode=eval)", trial, task=text_task())

    return played


def matching(seen: Observation, objective: objectives.Objective = objectives.cosine, lanes: int = 1) -> Matching:
    plan = Descent(10, Known(), objective, space=Embeddings(), lanes=lanes)
    return Matching(plan, seen, plan.labels.read(seen, Rng(0)), Rng(0))


def sorted_truth(played) -> Tensor:
    """The true rows in the order in which labels and lengths are told."""
    rows, labels = played.secret.readings, played.secret.labels
    wide = (rows != NOTHING).sum(1)
    order = sorted(range(len(rows)), key=lambda i: (int(labels[i]), int(wide[i])))
    return rows[order]


def state_at(run: Matching, ids: Tensor) -> dict[str, Tensor]:
    """The state of a descent that stands at these words; the memory of each place holds the place's number."""
    state = run.begin(None)
    state["z"] = run.words.embed(ids)[None].flatten(1).repeat(len(state["z"]), 1)
    places = torch.arange(ids.shape[1]).float()[:, None].expand(*run.room.shape[1:])
    for name in ("optimiser.m", "optimiser.v"):
        state[name] = places.expand(*run.room.shape).flatten().repeat(len(state["z"]), 1)
    return run.judge(state)


def generators(many: int = 200) -> list[np.random.Generator]:
    return [(Rng(0) / number).numpy() for number in range(many)]


@pytest.mark.parametrize("move", moves.ALL, ids=lambda move: move.__name__)
def test_a_move_is_another_order_of_the_same_places(move: moves.Move) -> None:
    start, seen = [3, 1, 4, 7, 5, 9], set()
    for rng in generators():
        moved = move(start, rng)
        assert sorted(moved) == sorted(start)
        seen.add(tuple(moved))
    assert start == [3, 1, 4, 7, 5, 9] and len(seen) >= len(start)


def test_moves_do_what_they_say() -> None:
    start = list(range(7))
    for rng in generators():
        swapped = [(i, j) for i, j in enumerate(moves.swap(start, rng)) if i != j]
        assert len(swapped) in (0, 2) and (not swapped or swapped[0] == swapped[1][::-1])
        elsewhere = moves.token(start, rng)
        assert any([p for p in elsewhere if p != one] == [p for p in start if p != one] for one in start)
        turned = moves.prefix(start, rng)
        assert turned == start[turned[0]:] + start[: turned[0]]
        together = moves.span(start, rng)
        breaks = [i for i in range(6) if together[i + 1] != together[i] + 1]
        assert len(breaks) <= 3  # what is before, the span, what is between, what is after


def test_proposals_keep_the_frame_and_the_present_order() -> None:
    inside = torch.tensor([False, True, True, True, True, False, False])
    orders = moves.propose(inside, moves.ALL, 60, Rng(0).numpy())
    assert orders[:, ~inside].unique(dim=0).tolist() == [[0, 5, 6]]
    assert all(sorted(row) == list(range(7)) for row in orders.tolist())
    assert list(range(7)) in orders.tolist() and len(orders.unique(dim=0)) == len(orders) > 10
    assert moves.propose(inside, (), 60, Rng(0).numpy()).tolist() == [list(range(7))]
    alone = torch.tensor([False, True, False])
    assert moves.propose(alone, moves.ALL, 60, Rng(0).numpy()).tolist() == [[0, 1, 2]]


def test_permutations_keep_the_frame() -> None:
    inside = torch.tensor([False, True, True, True, True, False])
    orders = moves.permutations(inside, 30, Rng(0).numpy())
    assert orders.shape == (30, 6) and orders[0].tolist() == list(range(6)) and len(orders.unique(dim=0)) > 10
    assert all(row[0] == 0 and row[5] == 5 and sorted(row) == list(range(6)) for row in orders.tolist())


@pytest.mark.parametrize(("search", "when"), [
    (Rearrange(Silent(), every=10, first=0.1), dict.fromkeys(range(10, 101, 10), 1)),
    (Rearrange(Silent(), every=10, first=0.35), dict.fromkeys(range(40, 101, 10), 1)),
    (Rearrange(Silent(), every=75, first=0.1), {75: 1}),
    (Rearrange(Silent(), every=30, at_end=True), {100: 3}),
    (Rearrange(Silent(), every=101), {}),
])
def test_when_words_are_rearranged(search: Rearrange, when: dict[int, int]) -> None:
    assert {step: n for step in range(1, 101) if (n := search.rounds(step, 100))} == when


@pytest.mark.parametrize("move", ["swap", "turn"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_words_and_the_optimisers_memory_move_together(scene, move: str, lanes: int) -> None:
    played = scene()
    run, truth = matching(played.seen, lanes=lanes), sorted_truth(played)
    order = torch.arange(truth.shape[1])
    if move == "swap":
        order[[2, 4]] = order[[4, 2]]
    else:
        inner = order[1:-1].clone()
        order[1:-1] = inner.roll(2)
    state = state_at(run, truth[:, order])
    search = Rearrange(Silent(), 0.0, proposals=400, first=0.0)
    state = search.improve(run, state, Rng(0))
    back = order.argsort()
    for lane in range(lanes):
        assert run.words.read(run.unpack(state["z"])[0])[lane].tolist() == truth.tolist()
        for name in ("optimiser.m", "optimiser.v"):
            memory = state[name][lane].reshape(run.room.shape)
            assert memory[0, :, 0].tolist() == back.tolist() and bool((memory == memory[..., :1]).all())


def test_a_lane_that_follows_a_draft_is_not_rearranged(scene) -> None:
    played = scene()
    run, truth = matching(played.seen, lanes=2), sorted_truth(played)
    order = torch.arange(truth.shape[1])
    order[[2, 4]] = order[[4, 2]]
    state = {**state_at(run, truth[:, order]), "draft.ids": truth}
    read = run.words.read(run.unpack(Rearrange(Silent(), 0.0, 400).improve(run, state, Rng(0))["z"])[0])
    assert read[0].tolist() == truth.tolist() and read[1].tolist() == truth[:, order].tolist()


def test_only_the_sentence_in_question_moves(scene) -> None:
    played = scene(count=3)
    run, truth = matching(played.seen), sorted_truth(played)
    rows = truth.clone()
    rows[1, [2, 3]] = rows[1, [3, 2]]
    state = Rearrange(Silent(), 0.0, 200).improve(run, state_at(run, rows), Rng(0))
    assert run.words.read(run.unpack(state["z"])[0])[0].tolist() == truth.tolist()


def test_a_prior_weighs_as_it_says(scene) -> None:
    played = scene()
    run, truth = matching(played.seen), sorted_truth(played)
    other = truth[0].clone()
    other[[2, 4]] = other[[4, 2]]
    prior = Prefers(run.words.vocabulary.sentence(other).text)

    def chosen(weight: float, relative: bool) -> list[int]:
        search = Rearrange(prior, weight, 400, relative=relative)
        state = search.improve(run, state_at(run, truth), Rng(0))
        return run.words.read(run.unpack(state["z"])[0])[0, 0].tolist()

    assert chosen(100.0, False) == other.tolist()
    assert chosen(1e-9, False) == chosen(100.0, True) == truth[0].tolist()


@pytest.mark.parametrize("objective", [objectives.cosine, objectives.layer_cosine, objectives.l2],
                         ids=["cosine", "layer_cosine", "l2"])
@pytest.mark.parametrize("place", [1, 4])
def test_a_wrong_word_is_found(scene, objective: objectives.Objective, place: int) -> None:
    played = scene()
    run, truth = matching(played.seen, objective), sorted_truth(played)
    wrong = truth.clone()
    wrong[0, place] = 20
    state = Substitute(words=300, most=300).improve(run, state_at(run, wrong), Rng(0))
    assert state["told.ids"].tolist() == state["draft.ids"].tolist() == truth.tolist()
    assert float(state["told.off"]) < 1e-8 and run.explained(state)


def test_drafts_match_better_and_better(scene) -> None:
    played = scene(count=2)
    run, truth = matching(played.seen, lanes=2), sorted_truth(played)
    inside = run.words.inside
    rows = truth.where(~inside, run.words.nearest.tokens[Rng(4).permutation(29)[: truth.numel()]].view(truth.shape))
    state = state_at(run, rows)
    search, offs = Substitute(words=12, most=40, orders=6, sweeps=1), [float(state["told.off"])]
    for number in range(4):
        state = search.improve(run, state, Rng(number))
        offs.append(float(state["told.off"]))
        ids = state["draft.ids"]
        assert ids[~inside].tolist() == truth[~inside].tolist() and bool(run.words.vocabulary.usable[ids[inside]].all())
        assert torch.equal(state["z"][-1].view(run.room.shape), run.words.embed(ids))
        assert not state["optimiser.m"][-1].any() and bool(state["optimiser.m"][0].any())
    assert offs == sorted(offs, reverse=True) and offs[-1] < 0.5 * offs[0]
    assert float(state["told.off"]) == pytest.approx(
        residual(played.seen, run.guess(state).batch).cosine, rel=1e-5)


@pytest.mark.parametrize("more", [True, False], ids=["a word too many", "a word too few"])
def test_where_lengths_are_not_known_a_draft_may_change_them(scene, more: bool) -> None:
    played = next(made for made in (scene(2, who="curious+labels", trial=trial) for trial in range(9))
                  if len({int(n) for n in (made.secret.readings != NOTHING).sum(1)}) == 2)
    truth = sorted_truth(played)
    wide = torch.nn.functional.pad(truth, (0, 2), value=NOTHING)
    plan = Descent(10, Known(), objectives.cosine, space=Embeddings(spare=2))
    run = Matching(plan, played.seen, plan.labels.read(played.seen, Rng(0)), Rng(0), wide != NOTHING)
    wrong = wide.clone()
    wrong[0] = torch.cat([wide[0, :2], torch.tensor([20]), wide[0, 2:-1]]) if more else torch.cat(
        [wide[0, :2], wide[0, 3:], torch.tensor([NOTHING])])
    state = {**state_at(run, wide), "told.ids": wrong, "told.off": torch.tensor(1.0, dtype=torch.float64)}
    state = Substitute(extra=20).improve(run, state, Rng(0))
    assert state["told.ids"].tolist() == wide.tolist() and float(state["told.off"]) < 1e-8


def test_a_round_without_success_looks_wider(scene) -> None:
    played = scene()
    run, truth = matching(played.seen), sorted_truth(played)
    search, state = Substitute(words=2, most=7), state_at(run, truth)
    widths = []
    for number in range(3):
        state = search.improve(run, state, Rng(number))
        widths.append(int(state["draft.wide"]))
    assert widths == [4, 7, 7] and state["draft.ids"].tolist() == truth.tolist()


@pytest.mark.parametrize("objective", [objectives.cosine, objectives.layer_cosine, objectives.l2],
                         ids=["cosine", "layer_cosine", "l2"])
def test_a_search_that_knows_of_gaps_compares_what_was_sent(scene, objective: objectives.Objective) -> None:
    """Nothing is multiplied out, the truth agrees, and a wrong word is found as without gaps."""
    played = scene(2, defense="prune(keep=0.2, by=random)", who="informed+labels+lengths")
    run, truth = matching(played.seen, objective), sorted_truth(played)
    assert run.replay.way == "factored" and run.replay.masked and isinstance(run.scoring.objective, Sampled)
    x, y = run.words.embed(truth)[None], run.fixed[None]
    value = run.slope(x, y, run.words.extra(1))
    assert float(value.match) < 1e-6 < float(run.slope(x.flip(2), y, run.words.extra(1)).match)
    assert bool(value.gradient.isfinite().all())
    wrong = truth.clone()
    wrong[0, 2] = 20 if truth[0, 2] != 20 else 21
    state = Substitute(words=300, most=300).improve(run, state_at(run, wrong), Rng(0))
    assert state["told.ids"].tolist() == truth.tolist()


def test_the_nearest_word(scene) -> None:
    words = scene().seen.vocabulary
    nearest = Nearest(words, words.usable)
    usable = words.usable.nonzero().flatten()
    table = words.table[usable]
    assert nearest(3.0 * table).tolist() == usable.tolist()
    assert nearest(table[None, None] + 1e-4).shape == (1, 1, len(usable))
    for token in (0, CLS, SEP):
        assert bool(words.usable[nearest(words.table[token][None])])
    three = nearest.several(table[:4], 3)
    assert three.shape == (4, 3) and three[:, 0].tolist() == usable[:4].tolist()
    slope = torch.randn(2, table.shape[1], generator=Rng(0).torch())
    assert torch.equal(nearest.steepest(slope, 2)[:, 0], usable[(table @ slope.mT).argmin(0)])
    few = Nearest(words, words.usable & (torch.arange(len(words.usable)) < 9))
    assert set(few(table).tolist()) <= set(range(9))


def test_a_room_keeps_the_frame(scene) -> None:
    played = scene(count=2)
    truth, room = sorted_truth(played), Embeddings().open(played.seen, 2)
    assert room.tokens == int((truth != NOTHING).sum()) and room.shape[:2] == truth.shape
    x = room.decode(room.begin(3, Rng(0)))
    table = room.table
    assert torch.equal(x[:, :, 0], table[CLS].expand(3, 2, -1))
    assert torch.allclose(x[:, room.inside].norm(dim=-1), room.norm.expand(3, int(room.inside.sum())))
    assert torch.equal(room.frame.where(~room.inside, truth), truth)
    assert torch.equal(room.settle(torch.zeros_like(x))[0][~room.inside], room.embed(truth)[~room.inside])
    assert room.settle(torch.zeros_like(x))[:, room.inside].abs().max() == 0
    assert torch.equal(room.read(room.embed(truth)[None])[0], truth)
    loose = Embeddings(scaled=False).open(played.seen, 2).begin(1, Rng(0))
    assert float(loose.view(room.shape)[room.inside].std()) == pytest.approx(1, abs=0.1)


def test_embeddings_are_drawn_to_the_length_of_words(scene) -> None:
    room = Embeddings().open(scene().seen, 1)
    x = torch.randn(2, *room.shape, generator=Rng(0).torch())
    x = x * (room.norm / x.norm(dim=-1, keepdim=True))
    x[1] *= 3
    assert word_length(x, room).tolist() == pytest.approx([0, float((2 * room.norm).square())], abs=1e-5)


def update_of(matrices: Sequence[Tensor], classes: int = 2) -> Observation:
    update = {str(number): matrix for number, matrix in enumerate(matrices)}
    return Observation(update, update, (24, 8), classes, lambda batch: update, Facts({Know.COUNT: 1}))


def thin(many: int, wide: int = 80, columns: int = 11) -> list[Tensor]:
    make = Rng(0).torch()
    return [torch.randn(wide, columns, generator=make) @ torch.randn(columns, wide, generator=make)
            for _ in range(many)]


def test_ranks() -> None:
    (matrix,) = thin(1)
    assert rank(matrix) == rank(matrix.double()) == rank(matrix[:, :40]) == rank(matrix[:40]) == 11
    assert rank(matrix + torch.randn(80, 80, generator=Rng(1).torch())) is None
    assert rank(torch.randn(80, 80, generator=Rng(1).torch())) is None and rank(torch.zeros(9, 9)) is None
    padded = torch.zeros(100, 100)
    padded[:80, :80] = matrix
    assert rank(padded) == 11


def test_tokens_are_counted_only_where_layers_agree() -> None:
    layers = [*thin(12), *thin(3, columns=1)]
    assert tokens(update_of(layers)) == 11
    for change in (torch.sign, lambda m: torch.round(m / m.abs().max() * 7)):
        assert tokens(update_of([change(layer) for layer in layers])) in (None, 1)


def test_lengths_are_granted_or_shared_out(scene) -> None:
    told = scene(count=3)
    assert lengths(told.seen, 3).tolist() == (sorted_truth(told) != NOTHING).sum(1).tolist()
    seen = update_of(thin(4))
    assert lengths(seen, 1).tolist() == [11] and lengths(seen, 2).tolist() == [6, 5]
    with pytest.raises(Unsuited, match="grant the lengths"):
        lengths(seen, 12)
    with pytest.raises(Unsuited, match="grant the lengths"):
        lengths(scene(who="curious", defense="noise(relative=1)").seen, 1)


@pytest.mark.parametrize("trial", range(4))
def test_the_rank_tells_the_length_of_one_sentence(scene, trial: int) -> None:
    played = scene(who="curious", trial=trial)
    assert lengths(played.seen, 1).tolist() == [int((played.secret.readings != NOTHING).sum())]


def test_what_explains_the_update_ends_the_search(scene) -> None:
    played = scene()
    run, truth = matching(played.seen), sorted_truth(played)
    assert run.explained(state_at(run, truth))
    wrong = truth.clone()
    wrong[0, 1] = 20
    assert not run.explained(state_at(run, wrong))
    assert isinstance(run.room, TokenRoom) and isinstance(run.reference, Reference)


def test_a_language_models_labels_are_what_its_embeddings_say(play) -> None:
    """The soft labels of the true embeddings are the true next words, and explain the update nearly as well."""
    scene = play("none", "informed+lengths", task="text(model=transformer3(width=32), data=sentences, limit=6)",
                 client="one_step(mode=eval)")
    room, truth = Embeddings().open(scene.seen, 1), scene.secret.batch
    x = truth.x[None].clone().requires_grad_()
    said = room.said(x)
    assert said.shape == (1, *truth.y.shape, scene.seen.classes)
    there = truth.y >= 0
    assert torch.equal(said[0].argmax(-1)[there], truth.y[there]) and not said[0][~there].any()
    assert float(torch.autograd.grad(said.square().sum(), x)[0].abs().max()) > 0
    assert residual(scene.seen, replace(truth, y=said[0].detach())).cosine < 0.01
    *_, guess = registry.build("attack", parse("tag(steps=3)")).guesses(scene.seen, Rng(0))
    assert guess.reading.shape == scene.secret.readings.shape and torch.equal(guess.batch.y, following(guess.reading))
    with pytest.raises(Unsuited, match="use tag"):
        next(iter(registry.build("attack", parse("lamp(steps=3)")).guesses(scene.seen, Rng(0))))
