"""Words in closed form: gauges, what is left out, and rounds on passages ever more like the one observed."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from gradleak import registry
from gradleak.attacks.learned import rounds
from gradleak.attacks.learned.gauge import Gauge, gauged
from gradleak.attacks.learned.lessons import words
from gradleak.attacks.learned.penalties import LADDER, left_out, solved
from gradleak.attacks.learned.rounds import believed, moved
from gradleak.errors import UsageError
from gradleak.registry import register
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Know
from gradleak.world.language import Language, opened
from gradleak.world.reader import NextWord

LIKE = torch.zeros(())
WORDS = [f"w{number}" for number in range(40)]
NEXT = "text(model=transformer3(width=32), data=sentences, public=90, limit=6)"
INFORMED = "informed+labels+lengths+public_data"


def said(examples: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words of two places, and what is said of them: turned, shrunk, and far off in one direction."""
    table = Rng(0).normal((30, 6), LIKE)
    drawn = torch.randint(30, (examples, 2), generator=Rng(1).torch())
    turn = 0.3 * torch.linalg.qr(Rng(2).normal((6, 6), LIKE)).Q
    off = 0.2 * Rng(3).normal((examples, 2, 6), LIKE) + 3 * Rng(4).normal((examples, 2, 1), LIKE) * turn[0]
    return table, drawn, table[drawn] @ turn + off


def test_a_gauge_tells_words_by_how_they_are_misread() -> None:
    table, drawn, heard = said()
    gauge = gauged(heard[:300], table[drawn[:300]])
    right = torch.stack([gauge(one, table).argmax(1) for one in heard[300:]]) == drawn[300:]
    nearest = torch.cdist(heard[300:].flatten(0, 1), table).argmin(1).view(-1, 2) == drawn[300:]
    assert float(right.float().mean()) > 0.5 > 0.2 > float(nearest.float().mean())
    again = Gauge.of(gauge.state)
    assert all(torch.equal(one, other) for one, other in zip(again.state.values(), gauge.state.values(), strict=True))


def test_a_gauge_needs_no_more_examples_than_numbers() -> None:
    table, drawn, heard = said(5)
    assert bool(gauged(heard, table[drawn])(heard[0], table).isfinite().all())


def test_what_is_left_out_is_what_a_fit_without_it_says() -> None:
    features = Rng(0).normal((30, 50), LIKE)
    target = features[:, :3] + 0.3 * Rng(1).normal((30, 3), LIKE)
    features = features - features.mean(0)
    found, other = left_out(features, target, features[:2] + 0.1)
    power, errors = features.square().sum(1).mean(), []
    for penalty in LADDER:
        factor = (1 / (penalty * power)).sqrt()
        each = []
        for i in range(30):
            rest = torch.arange(30) != i
            line = solved(iter([(features[rest] * factor, target[rest])]), 29, torch.zeros(50), torch.zeros(3))
            each.append(line.mean + (features[i] * factor - line.centre) @ line.weights)
        errors.append((float((torch.stack(each) - target).square().mean()), torch.stack(each)))
        line = solved(iter([(features * factor, target)]), 30, torch.zeros(50), torch.zeros(3))
        errors[-1] += (line.mean + ((features[:2] + 0.1) * factor - line.centre) @ line.weights,)
    _, each, whole = min(errors, key=lambda one: one[0])
    assert torch.allclose(found, each, atol=0.1) and torch.allclose(other, whole, atol=1e-2)


def test_beliefs_stay_open() -> None:
    often = torch.tensor([0.7, 0.2, 0.1, 0.0]).log()
    likely = torch.tensor([[0.0, 50.0, 0.0, 0.0], [0.0, 0.0, 80.0, 99.0]])
    found = believed(likely, often)
    assert torch.allclose(found.sum(1), torch.ones(2)) and bool((found[:, 3] == 0).all())
    assert float(found.amax(1).mean()) < rounds.SURE + rounds.ANY
    assert int(found[0].argmax()) == 1 and int(found[1].argmax()) == 2
    calm = believed(torch.zeros(1, 4), torch.tensor([0.3, 0.3, 0.2, 0.2]).log())
    assert torch.allclose(calm, torch.tensor([[0.3, 0.3, 0.2, 0.2]]))


@register("language", "small3")
@dataclass(frozen=True)
class Small3:
    """A next-word model of forty words."""

    causal: ClassVar[bool] = True

    def open(self, classes: int) -> Language:
        tokenizers, library = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
        known = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
        return opened(NextWord(len(known), 16, 3, 2), tokenizer, None, repr(self), len(known))


@pytest.fixture
def small(tmp_path) -> str:
    """Passages of six of forty words, drawn evenly."""
    picks = torch.randint(len(WORDS), (60, 6), generator=Rng(0).torch()).tolist()
    (tmp_path / "said.txt").write_text("\n".join(" ".join(WORDS[n] for n in row) for row in picks))
    return f"text(model=small3, data=lines('{tmp_path / 'said.txt'}', labels=false), public=40)"


def test_rounds_read_what_one_regression_does_not(play, small: str) -> None:
    """Words in their places, through a defense; by chance it would be one in forty."""
    once, rounds = 0, 0
    for trial in range(4):
        scene = play("sign", "informed+lengths+public_data", trial=trial, task=small)
        attack = registry.build("attack", parse("ridge_inverter(passages=1000, rounds=2)"))
        first, *_, last = (guess.reading for guess in attack.guesses(scene.seen, Rng(1)) if guess.state)
        once += int((first == scene.secret.readings).sum())
        rounds += int((last == scene.secret.readings).sum())
    assert once > 3 and once + 6 < rounds, (once, rounds)


def test_sentences_alike_stand_in_an_order_of_their_own(play) -> None:
    """Otherwise no regression could tell one from the other."""
    lesson = words(play("none", "informed+lengths+public_data", count=2, task=NEXT).seen, 40, Rng(0))
    one, other = lesson.sentences.tokens(40, Rng(1)).split(lesson.sentences.each, 1)
    assert one.shape == other.shape
    first, second = (lesson.embedded(part)[..., 0].sum(1) for part in (one, other))
    assert bool((first <= second).all())
    assert torch.equal(lesson.sentences.ordered(torch.cat([other, one], 1)), torch.cat([one, other], 1))


def test_a_word_moves_and_those_between_make_room() -> None:
    found = {tuple(row) for row in moved(torch.tensor([1, 2, 3, 4])).tolist()}
    assert (1, 2, 3, 4) in found and {(2, 3, 4, 1), (1, 3, 2, 4), (4, 1, 2, 3), (1, 4, 2, 3)} <= found
    assert len(found) == 1 + 3 * 3


def test_what_was_dropped_is_part_of_a_fit(play, text_task) -> None:
    who, task = "informed+labels+lengths+dropout+public_data", text_task(more=", public=1")
    scenes = [play("none", who, client="one_step(mode=train)", trial=0, task=task) for _ in range(2)]
    masks = {name: 1 - value for name, value in scenes[1].seen.facts[Know.DROPOUT].items()}
    scenes[1].seen.facts._granted[Know.DROPOUT] = masks
    one, other = (words(scene.seen, 10, Rng(0)).about for scene in scenes)
    assert one[:2] == other[:2] and one != other


def test_words_that_public_text_lacks_can_be_read(play, text_task) -> None:
    often = words(play(who=INFORMED, task=text_task(more=", public=1")).seen, 0, Rng(0)).often
    assert float(often[often.isfinite()].exp().sum()) == pytest.approx(1)
    assert int((often == often[often.isfinite()].min()).sum()) > 10


@pytest.mark.parametrize("spec", ["ridge_inverter(passages=99)", "ridge_inverter(rounds=-1)"])
def test_impossible_settings_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="at least"):
        registry.build("attack", parse(spec))
