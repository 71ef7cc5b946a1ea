"""Parts of the attacks on batches: which layers are matched when, BatchNorm's statistics, registration, generators."""

import sys
from itertools import pairwise

import pytest
import torch

from gradleak import registry
from gradleak.attacks.descent import Descent, Matching
from gradleak.attacks.learned.generator import Fit
from gradleak.attacks.parts import directions, schedules
from gradleak.attacks.parts.labels import Given
from gradleak.attacks.parts.priors import Moment, consensus, registered
from gradleak.attacks.parts.views import Deepening
from gradleak.errors import UsageError
from gradleak.factored import Reference
from gradleak.norms import moments, watching
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Know

NORMED = "image(model=resnet20, data=photos(size=8, count=40), train=4)"
LENET = "image(model=lenet, data=photos(size=16, count=40), public=20)"


def test_layers_are_taken_from_deep_to_shallow() -> None:
    view, every = Deepening(first=0.8, last=0.2, until=0.5, moves=3), [str(n) for n in range(10)]
    taken = [view.names(every, step, 12) for step in range(12)]
    assert taken[0] == every[8:] and taken[2] == every[6:] and taken[-1] == every[2:]
    assert all(len(one) <= len(next_) for one, next_ in pairwise(taken))
    assert Deepening(first=0.5, last=0.2, deepest=0.8).names(every, 12, 12) == every[2:8]
    assert len(Deepening().names(["weight", "bias"], 0, 9)) == 2
    with pytest.raises(UsageError, match="rise"):
        Deepening(first=0.1, last=0.5)


def test_both_updates_lose_the_same_entries() -> None:
    update = {name: torch.ones(40) for name in "abcd"}
    view = Deepening(first=0.5, last=0.5, dropout=0.3)
    one, same, other = (view({k: v[None] for k, v in update.items()}, Reference(update), step, 9, Rng(0))
                        for step in (1, 1, 2))
    stacked, reference = one
    assert set(reference) == {"c", "d"} and torch.equal(stacked["c"][0], reference["c"])
    assert torch.equal(reference["c"], same[1]["c"]) and not torch.equal(reference["c"], other[1]["c"])
    assert 15 <= int(reference["c"].sum()) <= 38


def test_what_was_best_is_forgotten_when_the_goal_changes(play) -> None:
    seen = play(task=LENET).seen
    plan = Descent(8, view=Deepening(until=0.5, moves=2, dropout=0.0),
                   priors=((schedules.begun(1.0, 0.75), lambda x, room: x.flatten(1).mean(1)),))
    run = Matching(plan, seen, plan.labels.read(seen, Rng(0)), Rng(0))
    goals = [run._goal(step) for step in range(8)]
    assert [n for n in range(1, 8) if goals[n] != goals[n - 1]] == [2, 4, 6]
    state = run.begin(None)
    for step in range(3):
        state = run.advance({**state, "match": torch.full((1,), -1.0)}, step)
        assert (float(state["match"]) >= 0) == (step == 2)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_statistics_at_every_layer_are_seen_through_the_replay(play, mode: str) -> None:
    scene = play(count=3, client=f"one_step(mode={mode})", who="curious+norm_stats", task=NORMED)
    known = scene.seen.facts[Know.NORM_STATS]
    with torch.no_grad(), watching() as met:
        scene.seen.replay(scene.secret.batch)
    assert len(met) == 21 == len({one.layer for one in met}) and set(known) == {one.layer for one in met}
    assert all((one.by is None) == (mode == "train") for one in met)
    met = [one._replace(x=one.x.detach()) for one in met]
    own = {one.layer: moments(one.x) for one in met}
    gap = Moment()
    assert float(gap.gap(met, own, met[0].x)) < 1e-5 < float(gap.gap(met, known, met[0].x))
    assert float(Moment(published=True).gap(met, own, met[0].x)) < 1e-3


def test_statistics_of_a_model_never_trained_say_nothing(play) -> None:
    scene = play(count=2, client="one_step(mode=eval)", task=NORMED.replace("train=4", "train=0"))
    with torch.no_grad(), watching() as met:
        scene.seen.replay(scene.secret.batch)
    assert not Moment().compared(met, {})


@pytest.mark.parametrize(("client", "who", "lower"), [
    ("one_step(mode=eval)", "curious+labels", True), ("one_step(mode=train)", "curious+labels", False),
    ("one_step(mode=train)", "curious+labels+norm_stats", True)])
def test_the_prior_brings_statistics_nearer_where_there_are_any(play, client: str, who: str, lower: bool) -> None:
    scene = play(count=2, client=client, who=who, task=NORMED)
    gaps = []
    for weight in (0.0, 100.0):
        plan = Descent(4, Given(), norms=(weight, Moment()), lanes=2)
        last = list(plan.guesses(scene.seen, Rng(0)))[-1]
        with torch.no_grad(), watching() as met:
            scene.seen.replay(type(scene.secret.batch)(last.state["z"][0].reshape(2, 3, 8, 8), last.batch.y))
        gaps.append(float(Moment().gap(met, scene.world.learner.statistics, met[0].x).detach()))
    assert (gaps[1] < gaps[0]) if lower else (gaps[1] == gaps[0])
    assert (Know.NORM_STATS in scene.seen.facts.used) == ("norm_stats" in who)


def test_registration_undoes_a_shift() -> None:
    image = (Rng(0) / "image").uniform((2, 3, 16, 16), torch.zeros(1))
    assert torch.equal(registered(image.roll((2, -1), (-2, -1)), image), image)
    far = image.roll(8, -1)
    assert not torch.equal(registered(far, image), image)  # half a side is no offset but another picture
    lanes = torch.stack([image, image])
    assert consensus(lanes, None).tolist() == [0.0, 0.0] and consensus(lanes[:1], None).tolist() == [0.0]


def test_a_stepped_direction_keeps_signs_and_moves_everyone() -> None:
    gradient = torch.tensor([[4.0, -2.0, 1e-6, 0.0]])
    found = directions.stepped(0.2, 4)(gradient)[0]
    assert torch.equal(found.sign(), gradient[0].sign()) and float(found[0]) == pytest.approx(1.0)
    assert float(found[2]) == pytest.approx(0.2 + 0.8 / 4)


def test_a_generator_is_fitted_once(play, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    seen = play(count=2, who="curious+public_data", task=LENET).seen
    fit, images = Fit(latent=16, width=4, steps=40), seen.facts[Know.PUBLIC_DATA].readings
    fresh, kept = fit.open(seen), fit.open(seen)
    assert len(list((tmp_path / "fits").iterdir())) == 1
    assert all(torch.equal(fresh.weights[name], kept.weights[name]) for name in kept.weights)
    flat = (images - images.mean()).square().mean()
    assert float((kept.paint(kept.viewer(images)) - images).square().mean()) < float(flat)
    near = kept.paint(kept.view(images[:3]))
    assert near.shape == (3, 3, 16, 16)
    assert float((near - images[:3]).square().mean()) < float((kept.paint(kept.viewer(images[:3])) - images[:3]
                                                              ).square().mean())


def test_a_generator_of_ones_own(play, tmp_path, monkeypatch) -> None:
    (tmp_path / "own_painter.py").write_text(
        "import torch\nclass Own(torch.nn.Module):\n    latent = 5\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layer = torch.nn.Linear(5, 768)\n"
        "    def forward(self, z):\n        return torch.sigmoid(self.layer(z)).reshape(-1, 3, 16, 16)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = play(count=2, task=LENET).seen
    attack = registry.build("attack", parse("gi_gip(steps=8, restarts=1, generator='own_painter:Own', pixels=false)"))
    assert Know.PUBLIC_DATA not in attack.needs and attack.uses == ("generator own_painter:Own",)
    last = list(attack.guesses(seen, Rng(0)))[-1]
    assert last.reading.shape == (2, 3, 16, 16) and last.step == last.steps
    sys.modules.pop("own_painter")
    with pytest.raises(UsageError, match="latent"):
        list(registry.build("attack", parse("gi_gip(generator='math:pi')")).guesses(seen, Rng(0)))


@pytest.mark.parametrize("spec", ["hf_gradinv(steps=3, published=true)", "gradinversion(steps=3, published=true)",
                                  "hf_gradinv(steps=3, stepwise=false, dropout=0, bn=0, deepest=0.8)"])
def test_the_published_settings_run(play, spec: str) -> None:
    seen = play(count=2, client="one_step(mode=eval)", task=NORMED).seen
    last = list(registry.build("attack", parse(spec)).guesses(seen, Rng(0)))[-1]
    assert bool(last.reading.isfinite().all()) and last.step == last.steps


def test_with_every_component_off_it_is_inverting_gradients(play) -> None:
    seen = play(count=2, client="one_step(mode=eval)", who="curious+labels", task=LENET).seen
    off = registry.build("attack", parse("hf_gradinv(steps=6, labels=given, stepwise=false, dropout=0, bn=0, t1=0)"))
    plain = registry.build("attack", parse("ig(steps=6, restarts=1, labels=given)"))
    one, other = (list(attack.guesses(seen, Rng(0)))[-1].reading for attack in (plain, off))
    assert torch.equal(one, other)


def test_a_report_shows_what_had_come_back_when_priors_set_in(tmp_path) -> None:
    from rich.console import Console

    from gradleak.audit.drive import run
    from gradleak.audit.plan import Audit
    from gradleak.report.html import write

    audit = Audit(task="image(model=mlp(width=8), data=photos(size=8, count=20))", threats=("curious",), batch=(2,),
                  attacks=("hf_gradinv(steps=10, t1=0.3, t2=0.6)",), trials=1, metrics=("psnr", "label_accuracy"))
    page = write(run(audit, tmp_path / "run", 1, Console(quiet=True))).read_text()
    assert page.count("by step 3") >= 2 and page.count("by step 6") >= 2 and "label inferred" in page
