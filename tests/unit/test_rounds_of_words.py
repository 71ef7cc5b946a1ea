"""Words in closed form: gauges, what is left out, and rounds on passages ever more like the one observed."""

import pytest
import torch

from gradleak import registry
from gradleak.attacks.learned import rounds
from gradleak.attacks.learned.gauge import Gauge, gauged
from gradleak.attacks.learned.lessons import words
from gradleak.attacks.learned.penalties import LADDER, left_out, solved
from gradleak.attacks.learned.rounds import believed
from gradleak.errors import UsageError
from gradleak.rng import Rng
from gradleak.spec import parse

LIKE = torch.zeros(())
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


def test_every_round_tells_more(play) -> None:
    """Words in their places, through a defense: by frequency alone, by one regression, by rounds of them."""
    right = {"blind": 0, "once": 0, "rounds": 0}
    for trial in range(2):
        scene = play("sign", "informed+lengths+public_data", trial=trial, task=NEXT)
        inside = scene.seen.vocabulary.usable[scene.secret.readings]
        often = words(scene.seen, 0, Rng(0)).often.argmax()
        right["blind"] += int((scene.secret.readings == often)[inside].sum())
        for name, times in (("once", 0), ("rounds", 3)):
            attack = registry.build("attack", parse(f"ridge_inverter(passages=500, rounds={times})"))
            *_, guess = attack.guesses(scene.seen, Rng(1))
            right[name] += int((guess.reading == scene.secret.readings)[inside].sum())
    assert right["blind"] < right["once"] < right["rounds"], right


def test_words_that_public_text_lacks_can_be_read(play, text_task) -> None:
    often = words(play(who=INFORMED, task=text_task(more=", public=1")).seen, 0, Rng(0)).often
    assert float(often[often.isfinite()].exp().sum()) == pytest.approx(1)
    assert int((often == often[often.isfinite()].min()).sum()) > 10


@pytest.mark.parametrize("spec", ["ridge_inverter(passages=99)", "ridge_inverter(rounds=-1)"])
def test_impossible_settings_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="at least"):
        registry.build("attack", parse(spec))
