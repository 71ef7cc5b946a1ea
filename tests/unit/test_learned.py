"""Learned inversion: hashing, penalties, the closed form."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak import registry
from gradleak.attacks.learned import ridge
from gradleak.attacks.learned.examples import Pictures
from gradleak.attacks.learned.hashing import bins, hashed, signs
from gradleak.attacks.learned.penalties import GROWTHS, LeftOut, chosen, grown, noise, solved
from gradleak.attacks.parts.labels import head
from gradleak.audit.plan import Audit
from gradleak.errors import UsageError
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Know

BENCH = Path(__file__).parents[2] / "bench"
DIGITS = "image(model=mlp(width=16), data=digits, public=150)"


def test_bins_are_even_and_signs_independent_of_them() -> None:
    found = bins(0, 100_000, 100)
    each = torch.bincount(found, minlength=100).float()
    assert int(found.min()) == 0 and int(found.max()) == 99 and 20 < float(each.std()) < 45
    side = signs(0, 100_000).float()
    assert abs(float(side.mean())) < 0.02 and abs(float((side * (found % 2 * 2 - 1)).mean())) < 0.02
    assert torch.equal(bins(500, 600, 100), found[500:600])
    assert float((bins(0, 10_000, 100, key=1) == found[:10_000]).float().mean()) < 0.03


@pytest.mark.parametrize("signed", [False, True])
def test_hashing_sums_what_falls_into_a_bin(signed: bool) -> None:
    rows = Rng(0).normal((3, 1000), torch.zeros(()))
    plain = torch.zeros(3, 50)
    for i, place in enumerate(bins(0, 1000, 50).tolist()):
        plain[:, place] += rows[:, i] * (int(signs(i, i + 1)) if signed else 1)
    assert torch.allclose(hashed([rows], 50, signed), plain, atol=1e-4)
    assert torch.allclose(hashed([rows[:, :333], rows[:, 333:].reshape(3, 23, 29)], 50, signed), plain, atol=1e-4)


def test_signed_sums_keep_inner_products() -> None:
    rows = Rng(0).normal((2, 20_000), torch.zeros(()))
    short = hashed([rows], 4000, signed=True)
    assert torch.allclose(short @ short.T, rows @ rows.T, atol=2000)


def _regression():
    """Two blocks of features: one tells most of the target, one nothing."""
    truth = Rng(1).normal((20, 4), torch.zeros(()))
    told = Rng(2).normal((300, 20), truth)
    idle = 5 * Rng(3).normal((300, 30), truth)
    target = told @ truth + Rng(4).normal((300, 4), truth)
    return torch.cat([told, idle], 1), target, [slice(0, 20), slice(20, 50)]


def test_penalties_find_the_block_that_tells() -> None:
    features, target, slices = _regression()
    quiet = noise(features[:8], features[:8], slices)
    assert quiet.gain.tolist() == [1, 1] and quiet.variance.tolist() == [0, 0]
    scales = chosen(features, target, slices, quiet, 300, -1.0, Rng(0))
    weights = scales.factors(300).square() * torch.tensor([20.0, 750.0])
    assert float(weights[0]) > 100 * float(weights[1])
    assert 1 < scales.error < 1.3


def test_the_error_left_out_is_that_of_a_second_fit() -> None:
    features, target, slices = _regression()
    features, target = features[:40] - features[:40].mean(0), target[:40] - target[:40].mean(0)
    quiet = noise(features, features, slices)
    scales = chosen(features, target, slices, quiet, 40, -1.0, Rng(0))
    spread = scales.factors(40).repeat_interleave(torch.tensor([20, 30]))
    errors = []
    for i in range(40):
        rest = torch.arange(40) != i
        line = solved(iter([(features[rest] * spread, target[rest])]), 39, torch.zeros(50), torch.zeros(4))
        found = line.mean + (features[i] * spread - line.centre) @ line.weights
        errors.append(float((found - target[i]).square().mean()))
    assert scales.error == pytest.approx(sum(errors) / 40, rel=0.25)


def test_the_slope_is_that_of_the_error() -> None:
    features, target, slices = _regression()
    kernels = torch.stack([features[:40, part] @ features[:40, part].T for part in slices]).double()
    left_out = LeftOut(kernels, torch.tensor([0.01, 0.1]).double(), target[:40].double())
    at = np.array([-1.0, 2.0])
    _, slope = left_out(at)
    for i in range(2):
        step = np.eye(2)[i] * 1e-5
        assert (left_out(at + step)[0] - left_out(at - step)[0]) / 2e-5 == pytest.approx(slope[i], rel=1e-3)


@pytest.mark.parametrize("rows", [20, 200])
def test_both_ways_to_solve_agree_with_least_squares(rows: int) -> None:
    features, target, _ = _regression()
    features, target = features[:rows] + 3, target[:rows] - 2
    pieces = zip(features.split(7), target.split(7), strict=True)
    line = solved(pieces, rows, features[:5].mean(0), target[:5].mean(0))
    x, y = (features - features.mean(0)).double(), (target - target.mean(0)).double()
    plain = torch.linalg.solve(x.T @ x + torch.eye(50), x.T @ y)
    assert torch.allclose(line.weights.double(), plain, atol=1e-3)
    assert torch.allclose(line.centre, features.mean(0), atol=1e-4)


def test_penalties_grow_where_they_are_too_weak() -> None:
    features, target, _ = _regression()
    told, centred = 30 * features[:, :20], target - target[:200].mean(0)
    loose, idle = torch.cat([told, 30 * features[:, 20:]], 1), told / 30
    growth, error = grown(loose[:60], centred[:60], loose[200:], centred[200:], True, Rng(0))
    assert growth == max(GROWTHS)
    once, plain = grown(loose[:60], centred[:60], loose[200:], centred[200:], False, Rng(0))
    assert once == 1.0 and error < plain
    line = solved(iter([(idle[:60], centred[:60])]), 60, torch.zeros(20), torch.zeros(4))
    found = line.mean + (idle[200:] - line.centre) @ line.weights
    assert grown(idle[:60] - idle[:60].mean(0), centred[:60] - centred[:60].mean(0), idle[200:] - idle[:60].mean(0),
                 centred[200:] - centred[:60].mean(0), False, Rng(0))[1] == pytest.approx(
        float((found - centred[200:]).square().mean()), rel=1e-3)


def test_rounding_does_not_stop_a_solution() -> None:
    """Features on very different scales, many of them the same: in float32 their products are not positive."""
    rows = Rng(0).normal((200, 3), torch.zeros(())) * torch.tensor([3e5, 1e4, 1.0])
    features = rows.repeat(1, 100)
    line = solved(iter([(features, rows[:, :1] / 3e5)]), 200, torch.zeros(300), torch.zeros(1))
    found = line.mean + (features - line.centre) @ line.weights
    assert float((found - rows[:, :1] / 3e5).abs().max()) < 0.1
    with pytest.raises(ArithmeticError, match="NaN"):
        solved(iter([(features * torch.nan, rows)]), 200, torch.zeros(300), torch.zeros(3))


def test_noise_is_heard_and_costs() -> None:
    features, target, slices = _regression()
    loud = features + Rng(9).normal(features.shape, features)
    heard = noise(features, loud, slices)
    assert heard.gain.tolist() == pytest.approx([1, 1], abs=0.05)
    assert heard.variance.tolist() == pytest.approx([1, 1], rel=0.1)
    quiet = noise(features, features, slices)
    assert chosen(features, target, slices, heard, 300, -1.0, Rng(0)).error > 2 * chosen(
        features, target, slices, quiet, 300, -1.0, Rng(0)).error


def test_batches_stand_in_an_order_of_their_own() -> None:
    images = Rng(0).uniform((12, 1, 2, 2), torch.zeros(()))
    x, y = Pictures(images, None, torch.tensor([1, 1, 4]), 3)(torch.arange(12))
    light = x.flatten(2).mean(2)
    assert y.tolist() == [[1, 1, 4]] * 12 and bool((light[:, 0] <= light[:, 1]).all())
    own = torch.arange(12) % 3
    x, y = Pictures(images, own, None, 3)(torch.arange(12))
    assert torch.equal(y, y.sort(1).values)
    for row, labels in zip(x, y, strict=True):
        for image, label in zip(row, labels, strict=True):
            where = (images == image).flatten(1).all(1).nonzero().item()
            assert own[where] == label


def test_numbers_after_the_last_image_mean_mirrored_ones() -> None:
    images = Rng(0).uniform((4, 1, 2, 3), torch.zeros(()))
    pictures = Pictures(images, torch.arange(4), None, 1)
    x, y = pictures(torch.tensor([1, 5, 2]))
    assert torch.equal(x[:, 0], torch.stack([images[1], images[1].flip(-1), images[2]]))
    assert y.tolist() == [[1], [1], [2]]
    assert torch.equal(images, Rng(0).uniform((4, 1, 2, 3), torch.zeros(())))


def test_halves_of_a_square_are_enough_to_solve_with() -> None:
    rows = Rng(0).normal((50, 2500), torch.zeros(()))
    target = rows[:, :2] + rows[:, 2:4]
    line = solved(iter([(rows, target)]), 50, torch.zeros(2500), torch.zeros(2))
    wide = torch.cat([rows] * 60)
    same = solved(iter([(part, target) for part in wide.split(50)]), 3000, torch.zeros(2500), torch.zeros(2))
    for found in (line, same):
        assert torch.allclose(found.mean + (rows - found.centre) @ found.weights, target, atol=0.1)


def answer(play, attack: str, defense: str = "none", count: int = 1, task: str = DIGITS) -> float:
    """PSNR of what an informed attacker with public data reads."""
    scores = []
    for trial in range(2):
        scene = play(defense, "informed+public_data", count, trial=trial, task=task)
        *_, guess = registry.build("attack", parse(attack)).guesses(scene.seen, Rng(1))
        error = (guess.reading - scene.secret.readings).square().flatten(1).mean(1)
        scores.append(float(-10 * error.mean().log10()))
    return sum(scores) / 2


def test_ridge_reads_through_defenses_it_knows(play) -> None:
    pytest.importorskip("sklearn")
    assert answer(play, "ridge_inverter") > 20
    assert answer(play, "ridge_inverter", "noise(relative=1)") > 15
    whole = answer(play, "ridge_inverter", "sign")
    assert whole > 14
    assert answer(play, "ridge_inverter(relabel=false)", "sign") < whole
    assert answer(play, "ridge_inverter(features=60)", "sign") < whole


def test_a_block_that_hardly_ever_differs_is_left_out(play, monkeypatch) -> None:
    """Its power in the sample that chooses penalties says nothing of its power elsewhere."""
    monkeypatch.setattr(ridge, "SAMPLE", 50)
    regression = ridge.Ridge().open(play(task=DIGITS, who="informed+public_data").seen, Rng(0))
    sent, x = regression._stack(torch.arange(100))

    def factors() -> torch.Tensor:
        return regression._scaled((sent, x), sent[:5], False, ridge.STRONG, Rng(0)).scales.factors(100)

    told = int(factors().argmax())
    assert float(factors()[told]) > 0
    block, whole = regression._slices(sent.shape[1])[told], sent.clone()
    sent[:, block] *= torch.arange(100)[:, None] == 70  # one example shows it
    assert float(factors()[told]) == 0 < float(factors().max())
    sent[:, block] = 1 + 1e-6 * whole[:, block] / whole[:, block].abs().max()  # all show it, hardly differently
    assert float(factors()[told]) == 0 < float(factors().max())


def test_labels_that_the_update_does_not_tell_are_not_given_to_public_images(play) -> None:
    """Pruning may leave of the head only rows that are raised: those of classes nobody has."""
    seen = play(who="informed+public_data", task=DIGITS).seen
    weight, bias = head(seen)
    hidden = {name: value.clamp_min(0) if name in (weight, bias) else value for name, value in seen.update.items()}
    kept = [ridge.Ridge().open(one, Rng(0)).lesson for one in (seen, replace(seen, update=hidden))]
    assert len(kept[0].shared) == 1 and kept[1].shared == ()
    assert len(set(kept[1].drawn(torch.arange(20))[0].y.flatten().tolist())) > 1


def test_a_search_can_start_from_the_closed_form(play) -> None:
    pytest.importorskip("sklearn")
    attack = registry.build("attack", parse("ridge_inverter(then=ig(steps=20, restarts=1, rate=0.01))"))
    seen = play("none", "informed+public_data", task=DIGITS).seen
    alone, *_, both = attack.guesses(seen, Rng(1))
    assert attack.needs == {Know.PUBLIC_DATA, Know.COUNT}
    assert residual(seen, both.batch).cosine < residual(seen, alone.batch).cosine


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        registry.build("attack", parse("ridge_inverter(features=0)"))


def test_a_network_learns_to_read_images(play) -> None:
    pytest.importorskip("sklearn")
    spec = "lti(epochs={}, hidden=[48, 48], rate=0.003, size=16)"
    assert answer(play, spec.format(12)) > answer(play, spec.format(1)) + 0.5


def test_public_images_may_be_given_the_labels_that_were_read(play) -> None:
    pytest.importorskip("sklearn")
    scene = play(who="informed+public_data", task=DIGITS)
    plain, relabelled = (registry.build("attack", parse(spec)).images.fits for spec in ("lti", "lti(relabel=true)"))
    own, given = (fits.open(scene.seen, Rng(0)).answers.drawn(torch.arange(6), Rng(0))[0].y
                  for fits in (plain, relabelled))
    assert len(set(own.flatten().tolist())) > 1
    assert set(given.flatten().tolist()) == set(scene.secret.labels.tolist())


def test_a_network_learns_to_read_words(play, text_task) -> None:
    """Held-out words become less of a surprise than their frequencies alone make them."""
    seen = play("sign", "informed+labels+lengths+token_frequencies", client="one_step(mode=eval)",
                task=text_task(more=", public=4")).seen
    spec = "lti_p(epochs=7, epoch=512, hidden=[128, 64], rate=0.001, ratio=1.0, size=32)"
    fitting = registry.build("attack", parse(spec)).fits.open(seen, Rng(0))
    state = fitting.begin(Rng(0))
    while int(state["step"]) < fitting.steps:
        state = fitting.advance(state, Rng(1) / int(state["step"]))
    shares = seen.facts[Know.TOKEN_FREQUENCIES][fitting.answers.tokens]
    shares = shares / shares.sum()
    assert float(state["error"]) < float(-(shares * shares.log()).sum()) - 0.2


def test_sentences_of_other_labels_or_lengths_are_another_fit(play, text_task) -> None:
    def about(trial: int):
        scene = play(who="informed+labels+lengths+token_frequencies", client="one_step(mode=eval)", trial=trial,
                     task=text_task(more=", public=1"))
        lengths = tuple((scene.secret.readings != -1).sum(1).tolist())
        return (lengths, tuple(scene.secret.labels.tolist()), None), registry.build(
            "attack", parse("lti_p")).fits.open(scene.seen, Rng(0)).about

    found = [about(trial) for trial in range(5)]
    assert all(true == said for true, said in found) and len({said for _, said in found}) > 2


@pytest.mark.parametrize("file", sorted(BENCH.glob("lti_*.toml")), ids=lambda f: f.stem)
def test_audit_files_can_be_planned(file: Path) -> None:
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    audit = Audit(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    for cell in audit.cells():
        assert cell.attacker().evaluations and cell.defender() and cell.scorers()
        cell.grants()


def test_batches_are_matched_before_they_are_compared() -> None:
    from gradleak.attacks.learned.answers import ImageAnswers

    target = Rng(0).uniform((4, 3, 5), torch.zeros(()))
    out = torch.logit(target[:, [2, 0, 1]].clamp(1e-4, 1 - 1e-4)).flatten(1)
    assert float(ImageAnswers.loss(None, out, target, {})) < 1e-6  # type: ignore[arg-type]


def test_training_stops_when_nothing_is_gained(play, monkeypatch) -> None:
    pytest.importorskip("sklearn")
    from gradleak.attacks.learned import inverter

    monkeypatch.setattr(inverter, "GAIN", 0.0)
    seen = play(task=DIGITS, who="informed+public_data").seen
    fits = registry.build("attack", parse("lti(epochs=9, hidden=[4, 4], size=64, patience=2)")).images.fits
    fitting = fits.open(seen, Rng(0))
    state, steps = fitting.begin(Rng(0)), 0
    while int(state["step"]) < fitting.steps:
        state, steps = fitting.advance(state, Rng(1)), steps + 1
    assert steps == 2 * fitting.every and fitting.steps == 9 * fitting.every


@pytest.mark.parametrize("spec", ["lti(epochs=0)", "lti_p(ratio=0)", "lti(patience=-1)"])
def test_impossible_training_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        registry.build("attack", parse(spec))


def test_the_inverters_memory_does_not_grow_with_the_model(play) -> None:
    """Hashed to as many features, the network is as large whatever it reads."""
    pytest.importorskip("sklearn")
    sizes = []
    for width in (8, 80):
        task = DIGITS.replace("width=16", f"width={width}")
        fits = registry.build("attack", parse("lti(hidden=[4, 4], features=200)")).images.fits
        state = fits.open(play(task=task, who="informed+public_data").seen, Rng(0)).begin(Rng(0))
        sizes.append(sum(value.numel() for value in state.values()))
    assert sizes[0] == sizes[1]
