"""Vision transformers in closed form: exact where the equations suffice, a sentence where they do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gradleak.attacks.descent import Descent
from gradleak.attacks.exact.embedded import embedded
from gradleak.attacks.exact.patches import Patches, by_place, by_span
from gradleak.attacks.parts.labels import Known
from gradleak.errors import Unsuited, UsageError
from gradleak.registry import build
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Guess, Observation

PHOTOS = "data=photos(size=32, count=40)"
VIT = f"image(model=vit(layers=2), {PHOTOS})"
WIDE = f"image(model=vit(layers=2, patch=8, width=256, heads=4), {PHOTOS})"

SMALL = f"image(model=vit(layers=1, patch=8), {PHOTOS})"

MODELS = """
import transformers
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, kind="ViT", frozen=(), scaled=False, patch=4, attention="eager", drop=0.0):
        super().__init__()
        config = getattr(transformers, kind + "Config")(
            image_size=shape[-1], patch_size=patch, hidden_size=192, num_hidden_layers=2, num_attention_heads=3,
            intermediate_size=192, num_labels=classes, attn_implementation=attention, hidden_dropout_prob=drop)
        self.net, self.scaled = getattr(transformers, kind + "ForImageClassification")(config), scaled
        for name, weights in self.net.named_parameters():
            if "position" in name:
                nn.init.normal_(weights, std=0.02)
            weights.requires_grad_(not any(part in name for part in frozen))

    def forward(self, x):
        return self.net((x - 0.5) / 0.5 if self.scaled else x).logits

def trained(shape, classes): return Net(shape, classes, scaled=True, attention="sdpa")
def frozen(shape, classes): return Net(shape, classes, frozen=["embeddings"])
def deit(shape, classes): return Net(shape, classes, "DeiT", frozen=["position"])
def coarse(shape, classes): return Net(shape, classes, frozen=["embeddings"], patch=8)
def dropping(shape, classes): return Net(shape, classes, drop=0.1)
"""


@pytest.fixture
def hf_task(tmp_path, monkeypatch) -> Callable[[str], str]:
    pytest.importorskip("transformers")
    (tmp_path / "vits_to_read.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: f"image(model=python('vits_to_read:{name}'), {PHOTOS})"


def answer(seen: Observation) -> Guess:
    return list(Patches().guesses(seen, Rng(2)))[-1]


def decibels(guess: torch.Tensor, truth: torch.Tensor) -> float:
    return float(-10 * (guess.double() - truth.double()).square().mean().log10())


@pytest.mark.parametrize("trial", range(2))
@pytest.mark.parametrize("model", ["vit(layers=2)", "vit(layers=2, patch=8)"])
def test_an_image_is_read_with_its_label(play, model: str, trial: int) -> None:
    scene = play(task=f"image(model={model}, {PHOTOS})", who="curious", trial=trial)
    guess = answer(scene.seen)
    assert decibels(guess.reading, scene.secret.readings) > 80
    assert guess.batch.y.tolist() == scene.secret.labels.tolist()
    assert guess.notes["certain"] == 1 and guess.step == guess.steps


@pytest.mark.parametrize("model", ["vit(layers=2)", "vit(layers=2, patch=8)"])
def test_positions_and_attention_each_suffice(play, model: str) -> None:
    scene = play(task=f"image(model={model}, {PHOTOS})")
    form = embedded(scene.seen, Rng(2))
    for way in (by_place, by_span):
        assert decibels(form.image(way(form).patches[None]), scene.secret.readings) > 70


@pytest.mark.parametrize("name", ["trained", "frozen", "deit"])
def test_models_of_the_hub_are_read(play, hf_task, name: str) -> None:
    scene = play(task=hf_task(name), who="curious")
    guess = answer(scene.seen)
    assert decibels(guess.reading, scene.secret.readings) > 60
    assert guess.batch.y.tolist() == scene.secret.labels.tolist()


def in_order(guess: Guess, truth: torch.Tensor) -> tuple[list[float], list[int]]:
    """Decibels of each true image's nearest guess, and which that is."""
    table = [[decibels(one, other) for one in guess.reading] for other in truth]
    return [max(row) for row in table], [row.index(max(row)) for row in table]


@pytest.mark.parametrize("count", [2, 3])
def test_images_of_a_batch_are_told_apart(play, count: int) -> None:
    scene = play(task=WIDE, count=count, who="curious")
    guess = answer(scene.seen)
    scores, which = in_order(guess, scene.secret.readings)
    assert min(scores) > 50 and sorted(which) == list(range(count))
    assert guess.batch.y[which].tolist() == scene.secret.labels.tolist()
    assert guess.notes["certain"] == 1 and min(guess.notes["space_gap"], guess.notes["group_gap"]) >= 5
    assert torch.equal(answer(scene.seen).reading, guess.reading)


def test_what_cannot_be_told_apart_is_said_to_be_uncertain(play) -> None:
    scene = play("noise(relative=0.01)", task=WIDE, count=2)
    guess = answer(scene.seen)
    assert guess.notes["certain"] == 0
    assert min(in_order(guess, scene.secret.readings)[0]) < 30


def test_a_pruned_update_gives_the_likeliest_picture(play) -> None:
    scene = play("prune(keep=0.5)", task=WIDE, who="curious", trial=1)
    guess, truth = answer(scene.seen), scene.secret.readings
    flat = truth.mean((2, 3), keepdim=True).expand_as(truth)
    assert guess.notes["certain"] == 0
    assert decibels(guess.reading, truth) > 5 + max(decibels(flat, truth), decibels(naive(scene.seen), truth))


@pytest.mark.parametrize(("defense", "low", "high"), [("noise(sigma=1e-4)", 25, 60), ("noise(relative=10)", 0, 20)])
def test_noise_is_said_to_be_uncertain(play, defense: str, low: float, high: float) -> None:
    scene = play(defense, task=WIDE, who="curious")
    guess = answer(scene.seen)
    assert guess.notes["certain"] == 0
    assert low < decibels(guess.reading, scene.secret.readings) < high


def naive(seen: Observation) -> torch.Tensor:
    """As if nothing had been done to the update."""
    form = embedded(seen, Rng(2))
    return form.image(by_place(form).patches[None]).clamp(0, 1)


def test_signs_are_faced(play) -> None:
    scene = play("sign", task=WIDE, who="curious", trial=2)
    guess, truth = answer(scene.seen), scene.secret.readings
    assert guess.notes["certain"] == 0 and guess.batch.y.tolist() == scene.secret.labels.tolist()
    assert decibels(guess.reading, truth) > decibels(torch.full_like(truth, 0.5), truth)


def test_noisy_images_are_matched_by_likelihood(play) -> None:
    """Far beyond the likeliest smooth picture, and beyond where one minus a cosine is lost in rounding."""
    scene = play("noise(relative=0.1)", task=SMALL, who="curious", trial=1)
    *_, guess = build("attack", parse("subspace(steps=150)")).guesses(scene.seen, Rng(2))
    truth = scene.secret.readings
    assert decibels(guess.reading, truth) > decibels(answer(scene.seen).reading, truth) + 3.3
    assert guess.batch.y.tolist() == scene.secret.labels.tolist()


def test_matching_keeps_the_label_it_is_handed(play) -> None:
    """The closed form reads it off features it knows; guessing it again from typical features is worse."""
    seen = play("noise(relative=0.1)", task=SMALL, who="curious").seen
    start = answer(seen)
    for label in range(3):
        handed = replace(start, batch=replace(start.batch, y=torch.tensor([label])))
        *_, guess = Descent(1, Known()).guesses(seen, Rng(2), handed)
        assert guess.batch.y.tolist() == [label]


def test_batches_with_too_many_patches_are_refused(play) -> None:
    refused(play(task=VIT, count=2).seen, "2 images of 64 patches apart: at most 90")
    refused(play(task=VIT, count=3).seen, "193 tokens, width 192")


def test_too_few_equations_are_counted(play, hf_task) -> None:
    refused(play(task=hf_task("coarse")).seen, "175 equations a patch .* for 193 unknowns, and the patch projection is")
    narrow = f"image(model=vit(layers=1, width=48), {PHOTOS})"
    refused(play(task=narrow).seen, "fewer tokens than the model is wide: 65 tokens, width 48")


def test_other_models_dropout_and_text_are_refused(play, hf_task, text_task) -> None:
    for model in ("lenet", "mlp(width=8)"):
        refused(play(task=f"image(model={model}, {PHOTOS})").seen, "needs a vision transformer")
    refused(play(task=hf_task("dropping")).seen, "drops parts of the embeddings")
    refused(play(task=text_task(), who="curious+labels+lengths").seen, "text")


def test_another_update_gives_another_image(play) -> None:
    scene, other = play(task=VIT), play(task=VIT, trial=1)
    guess = answer(replace(scene.seen, update=other.seen.update))
    assert decibels(guess.reading, other.secret.readings) > 80 > 20 > decibels(guess.reading, scene.secret.readings)


def test_vit_is_what_it_says() -> None:
    module = build("model", parse("vit(patch=16, width=768, layers=12, heads=12)")).build((3, 224, 224), 1000)
    assert sum(p.numel() for p in module.parameters()) == 86_567_656  # as published
    with pytest.raises(UsageError, match="multiple of the patch"):
        build("model", parse("vit(patch=5)")).build((3, 32, 32), 10)
    with pytest.raises(UsageError, match="multiple of the heads"):
        build("model", parse("vit(heads=5)"))


def refused(seen: Observation, reason: str) -> None:
    with pytest.raises(Unsuited, match=reason) as caught:
        answer(seen)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
