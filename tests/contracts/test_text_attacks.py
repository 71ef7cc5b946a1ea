"""What every registered attack on text must hold, those of other packages included, on a model of two layers."""

import inspect

import pytest
import torch

from gradleak import registry
from gradleak.attacks.combine import Alternate, ByKind, Restart, Stages
from gradleak.attacks.descent import Descent, Matching
from gradleak.attacks.exact import settling
from gradleak.attacks.exact.subspace import Words
from gradleak.attacks.parts.labels import Known
from gradleak.attacks.parts.language import Silent
from gradleak.attacks.parts.lengths import tokens
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.attacks.search import Rearrange, Substitute
from gradleak.audit.plan import OF_PUBLIC
from gradleak.errors import Unsuited
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import Call, parse
from gradleak.threats import PROTOCOL
from gradleak.types import NOTHING, Attack, Guess, Know, Observation, following

MUST = {"dlg", "grab", "lamp", "tag"}
ALL = "curious+labels+lengths"
SHORT = {"steps": 2, "restarts": 2, "rounds": 1, "sweeps": 1, "width": 1, "epochs": 2, "epoch": 16, "hidden": (8, 8),
         "size": 8, "passages": 100}
SEARCHING = Descent(4, Known(), space=Embeddings(), rate=0.01, starts=3, lanes=2, search=Rearrange(
    Silent(), proposals=8, every=2, first=0.0), refine=Substitute(12, 400, 6, 1))
"""All that a search for words can do, in little time."""


def short(name: str, **more: object) -> Attack:
    known = inspect.signature(registry.maker("attack", name)).parameters
    given = {k: v for k, v in SHORT.items() if k in known} | more
    return registry.build("attack", Call(name, (), tuple(given.items())))  # type: ignore[no-any-return]


def answers(attack: Attack, seen: Observation, start: Guess | None = None) -> list[Guess]:
    """An attack that solves instead of searching may refuse, in a sentence; what it answers must hold."""
    try:
        return list(attack.guesses(seen, Rng(2), start))
    except Unsuited as problem:
        if not solves(attack):
            raise
        assert "\n" not in str(problem) and len(str(problem)) < 250
        pytest.skip(str(problem))


def solves(attack: Attack) -> bool:
    return isinstance(attack, ByKind) and isinstance(attack.words, Words)


@pytest.fixture
def scene(request, play, text_task):
    """A round of the tiny model; nothing is dropped unless a client is named. What an attack needs is granted."""
    name = request.node.callspec.params.get("attack", "") if hasattr(request.node, "callspec") else ""
    needs = short(name).needs - PROTOCOL if name in registry.names("attack") else frozenset()
    public = sorted(know.value for know in needs & OF_PUBLIC)

    def played(
        defense: str = "none", who: str = ALL, count: int = 1, client: str = "one_step(mode=eval)", more: str = "",
        family: str = "bert", trial: int = 0,
    ):
        more += ", public=2" if public else ""
        return play(defense, "+".join([who, *public]), count, client, trial, task=text_task(family, more))

    return played


@pytest.fixture(scope="module")
def refused() -> dict[str, bool]:
    """Attacks by name, whether they do not read text; filled as they are tried."""
    return dict.fromkeys(MUST, False)


@pytest.fixture(params=[*registry.names("attack"), "searching"])
def attack(request, scene, monkeypatch, refused: dict[str, bool]) -> Attack:
    monkeypatch.setattr(settling, "ROUNDS", 3)
    name: str = request.param
    if name == "searching":
        return SEARCHING
    if name not in refused:
        try:
            refused[name] = not next(short(name).guesses(scene().seen, Rng(0)))
        except Unsuited:
            refused[name] = True
    if refused[name]:
        pytest.skip("reads images only")
    return short(name)


def check(guess: Guess, seen: Observation, count: int, lengths: torch.Tensor | None = None) -> None:
    """Rows of tokens in their frame, and a batch that replays them."""
    rows, words = guess.reading, seen.vocabulary
    assert words is not None and rows.dtype == torch.long and rows.shape[0] == count and guess.step == guess.steps
    there = rows != NOTHING
    wide = there.sum(1)
    assert torch.equal(there, torch.arange(rows.shape[1]) < wide[:, None])
    if lengths is not None:
        assert sorted(wide.tolist()) == sorted(lengths.tolist())
    for row, length in zip(rows, wide.tolist(), strict=True):
        first, last = len(words.opening), length - len(words.closing)
        assert tuple(row[:first].tolist()) == words.opening and tuple(row[last:length].tolist()) == words.closing
        assert bool(words.usable[row[first:last]].all())
    assert torch.equal(guess.batch.extra["mask"], there.long())
    assert torch.equal(guess.batch.x[there], words.table[rows[there]])
    assert guess.batch.x.shape == (count, rows.shape[1], words.table.shape[1])
    assert residual(seen, guess.batch).cosine == residual(seen, guess.batch).cosine  # is a number


DEFENSES = ["none", "sign", "prune(keep=0.2)", "prune(keep=0.2, by=layer)", "prune(keep=0.3, by=random)",
            "noise(relative=1)", "clip(norm=0.1)", "quantise(bits=4)", "quantise(bits=4, stochastic=false)",
            "chain(clip(norm=0.1), prune(keep=0.2), noise(relative=0.1))"]


@pytest.mark.parametrize("defense", DEFENSES)
def test_every_defense_can_be_faced(scene, attack: Attack, defense: str) -> None:
    seen = scene(defense, "informed+labels+lengths", 3).seen
    check(answers(attack, seen)[-1], seen, 3, seen.facts[Know.LENGTHS])


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize(("who", "count"), [("informed", 1), ("curious", 1), ("curious", 3)])
def test_with_and_without_knowing_of_it(scene, defense: str, who: str, count: int) -> None:
    seen = scene(defense, f"{who}+labels+lengths", count).seen
    check(answers(SEARCHING, seen)[-1], seen, count, seen.facts[Know.LENGTHS])


def test_same_seed_same_guess(scene, attack: Attack) -> None:
    one, other = (answers(attack, scene(count=2).seen)[-1] for _ in range(2))
    assert torch.equal(one.reading, other.reading) and torch.equal(one.batch.x, other.batch.x)


def test_going_on_from_any_guess_changes_nothing(scene, attack: Attack) -> None:
    seen = scene("prune(keep=0.3)", "informed+labels+lengths", 2).seen
    whole = answers(attack, seen)
    for middle in whole:
        rest = [middle, *answers(attack, seen, middle)]
        assert torch.equal(rest[-1].reading, whole[-1].reading) and torch.equal(rest[-1].batch.y, whole[-1].batch.y)


def test_stages_hand_words_over(scene) -> None:
    seen = scene(count=2).seen
    both = Stages((Descent(3, space=Embeddings()), Descent(3, space=Embeddings(), rate=0.01)))
    whole = answers(both, seen)
    for middle in whole:
        assert torch.equal([middle, *answers(both, seen, middle)][-1].reading, whole[-1].reading)
    check(whole[-1], seen, 2)


@pytest.mark.parametrize("trial", range(3))
def test_the_length_of_one_sentence_is_read_off_the_update(scene, trial: int) -> None:
    played = scene(who="curious", trial=trial)
    guess = answers(Descent(1, space=Embeddings()), played.seen)[-1]
    check(guess, played.seen, 1, (played.secret.readings != NOTHING).sum(1))


def test_all_tokens_of_several_are_shared_out(scene, attack: Attack) -> None:
    played = scene(who="curious", count=2)
    total = tokens(played.seen)
    guess = answers(attack, played.seen)[-1]
    check(guess, played.seen, 2)
    if isinstance(attack, Alternate):  # it changes lengths as it goes
        return
    each = (guess.reading != NOTHING).sum(1)
    assert int(each.sum()) == total == int((played.secret.readings != NOTHING).sum())
    assert int(each.max() - each.min()) <= 1 or solves(attack)


@pytest.mark.parametrize("defense", ["noise(relative=1)", "sign"])
def test_where_the_rank_is_hidden_lengths_are_asked_for(scene, attack: Attack, defense: str) -> None:
    if solves(attack):
        pytest.skip("reads lengths in its own way")
    with pytest.raises(Unsuited, match=r"curious\+lengths"):
        answers(attack, scene(defense, "informed").seen)


@pytest.mark.parametrize("name", sorted(MUST))
@pytest.mark.parametrize("labels", ["given", "counted", "joint", "known"])
@pytest.mark.parametrize("count", [1, 3])
def test_labels(scene, name: str, labels: str, count: int) -> None:
    played = scene(who=ALL if labels in ("given", "known") else "curious+lengths", count=count)
    guess = answers(short(name, labels=Call(labels)), played.seen)[-1]
    check(guess, played.seen, count)
    if labels == "joint":
        assert guess.batch.y.shape == (count, 2) and torch.allclose(guess.batch.y.sum(1), torch.ones(count))
    else:
        assert guess.batch.y.tolist() == sorted(played.secret.labels.tolist())


def ways(attack: Attack, seen: Observation) -> str:
    """How the attack's descent replays its candidates."""
    while not isinstance(attack, Descent):
        assert isinstance(attack, Restart | ByKind)
        attack = attack.attack if isinstance(attack, Restart) else attack.words
    return Matching(attack, seen, attack.labels.read(seen, Rng(0)), Rng(0)).replay.way


@pytest.mark.parametrize(("client", "fast"), [
    ("one_step(mode=eval)", True), ("one_step(mode=train)", True),
    ("local_steps(steps=2, rate=0.05, mode=eval)", False), ("local_steps(steps=1, mode=eval)", True),
    ("per_sample(mode=eval)", False), ("per_sample(mode=train)", False)])
def test_every_client_can_be_faced(scene, attack: Attack, client: str, fast: bool) -> None:
    seen = scene(count=2, client=client).seen
    check(answers(attack, seen)[-1], seen, 2, seen.facts[Know.LENGTHS])
    if attack is SEARCHING:
        assert (ways(attack, seen) == "factored") == fast


@pytest.mark.parametrize(("more", "family"), [(", embeddings=trained", "bert"), (", positions=trained", "bert"),
                                              (", embeddings=trained, positions=trained", "bert"), ("", "roberta"),
                                              ("", "gpt2"), (", positions=trained", "gpt2"), (", limit=4", "bert")])
def test_every_model_can_be_faced(scene, attack: Attack, more: str, family: str) -> None:
    seen = scene(count=2, more=more, family=family).seen
    check(answers(attack, seen)[-1], seen, 2, seen.facts[Know.LENGTHS])
    assert attack is not SEARCHING or ways(attack, seen) == "factored"


def test_a_trained_table_names_the_words(scene, attack: Attack) -> None:
    played = scene(more=", embeddings=trained")
    room = Embeddings().open(played.seen, 1)
    inside = played.secret.readings[room.inside]
    assert set(room.nearest.tokens.tolist()) == set(inside.tolist())
    guess = answers(attack, played.seen)[-1]
    assert set(guess.reading[room.inside].tolist()) <= set(inside.tolist())
    assert torch.equal(guess.batch.extra["ids"], guess.reading)
    truth = room.told(played.secret.readings[None], played.secret.labels[None])
    told = residual(played.seen, type(truth)(truth.x[0], truth.y[0], {k: v[0] for k, v in truth.extra.items()}))
    assert told.l2 < 1e-5


def test_a_next_word_model_is_matched_but_its_words_are_not_moved(play) -> None:
    """Its labels are the sentence itself: they follow the candidate, and a search that keeps them is refused."""
    pytest.importorskip("transformers")
    seen = play(task="text(model=transformer3(width=32), data=sentences, limit=6)", who="curious+lengths").seen
    for attack in (short("tag"), short("tag", labels=Call("joint"))):
        last = answers(attack, seen)[-1]
        assert torch.equal(last.batch.y, following(last.reading))
    with pytest.raises(Unsuited, match="predicts words"):
        answers(short("lamp"), seen)


@pytest.mark.parametrize("spec", ["tag(steps=0)", "tag(restarts=0)", "lamp(steps=0)"])
def test_impossible_settings_are_refused(spec: str) -> None:
    from gradleak.errors import UsageError

    with pytest.raises(UsageError, match="at least 1"):
        registry.build("attack", parse(spec))


@pytest.mark.parametrize("spec", ["lamp(published=true)", "lamp(moves=end)", "lamp(moves=none)", "lamp(large=true)",
                                  "lamp(objective=l2_l1)", "lamp(objective=l2, published=true)", "lamp(prior=none)",
                                  "lamp(lm=0, norm=0)"])
def test_every_form_of_lamp_runs(scene, spec: str) -> None:
    seen = scene(count=2).seen
    attack = registry.build("attack", parse(spec.replace(")", ", steps=3)")))
    check(answers(attack, seen)[-1], seen, 2, seen.facts[Know.LENGTHS])
