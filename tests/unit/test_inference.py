"""Labels of batches: every rule on the same updates, and where a rule must say that it cannot."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import registry
from gradleak.attacks.parts.evolution import evolved, rescaled
from gradleak.attacks.parts.inference import Evolved, Lowest, Minimum, ways
from gradleak.attacks.parts.labels import Counted, _written, made_up
from gradleak.errors import Unsuited, UsageError
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Know

CONVNET = "image(model=convnet, data=photos(size=16, count=80), public=40)"


def right(found, truth) -> int:
    found, truth = found.tolist(), truth.tolist()
    return sum(min(found.count(c), truth.count(c)) for c in set(truth))


@given(st.lists(st.floats(0.01, 9), min_size=1, max_size=8), st.integers(8, 60))
@settings(max_examples=10, deadline=None)
def test_evolution_gives_whole_numbers_that_sum(goal: list[float], total: int) -> None:
    found = evolved(torch.tensor(goal), total, Rng(0))
    assert int(found.sum()) == total and int(found.min()) >= 1


def test_evolution_finds_the_counts() -> None:
    truth = torch.tensor([12, 1, 3, 30, 8, 1, 9])
    noisy = truth * torch.tensor([1.02, 0.9, 1.0, 0.98, 1.01, 1.1, 1.0])
    assert torch.equal(evolved(noisy, 64, Rng(0)), truth)


def test_rescaling_keeps_everyone() -> None:
    assert rescaled(np.array([[100.0, 0.0, 0.0], [1.0, 1.0, 1.0]]), 3).tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("count", [8, 24])
def test_repeated_labels_are_counted_by_evolution(play, count: int) -> None:
    total = {"evolved": 0, "minimum": 0, "lowest": 0}
    for trial in range(4):
        scene = play(count=count, trial=trial, task=CONVNET, who="curious+public_data")
        for way in total:
            total[way] += right(ways(way).read(scene.seen, Rng(0)).labels, scene.secret.labels)
    assert total["evolved"] / (4 * count) >= 0.9
    assert total["evolved"] > max(total["minimum"], total["lowest"])


MANY = ("image(model=convnet, data=relabelled(photos(size=16, count=80), "
        "to=(5, 404, 17, 999, 1, 2, 300, 4, 650, 700), of=1000))")


@pytest.mark.parametrize(("defense", "replays"), [("none", 1), ("noise(relative=0.1)", 1), ("sign", 101)])
def test_counting_among_many_classes_replays_each_only_where_a_defense_acts(play, defense: str, replays: int) -> None:
    """With a thousand classes the hundred lowest rows are looked at. The formula gives what replaying them gives."""
    scene, asked = play(defense, "informed", 8, task=MANY), []

    def replay(batch):
        update = scene.seen.replay(batch)  # a look at one layer does not get to the end
        asked.append(len(batch.x))
        return update

    found = Counted().read(dataclasses.replace(scene.seen, replay=replay), Rng(0))
    assert len(asked) == replays
    assert right(found.labels, scene.secret.labels) >= 6 or defense == "sign"
    likely, batch = torch.tensor([3, 5, 404, 999]), made_up(scene.seen, 8, Rng(0), 0)
    if defense != "sign":
        for one, other in zip(Counted()._replayed(scene.seen, batch, likely), _written(scene.seen, batch, likely),
                              strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_public_images_are_used_where_granted_and_made_up_where_not(play) -> None:
    told, alone = (play(count=8, task=CONVNET, who=who).seen for who in ("curious+public_data", "curious"))
    for published in (True, False):
        assert len(Evolved(published=published).read(told, Rng(0)).labels) == 8
        assert len(Evolved(published=published).read(alone, Rng(0)).labels) == 8
    assert Know.PUBLIC_DATA in told.facts.used


@pytest.mark.parametrize("way", ["lowest", "minimum", "evolved", "evolved_published"])
def test_every_rule_gives_a_label_an_example_and_how_sure_it_is(play, way: str) -> None:
    for count in (1, 13):  # 13: more than there are classes
        seen = play(count=count, task=CONVNET).seen
        read = ways(way).read(seen, Rng(0))
        assert read.labels.shape == read.confidence.shape == (count,)
        assert float(read.confidence.min()) >= 0 and float(read.confidence.max()) <= 1
        assert int(read.labels.max()) < seen.classes


def test_no_negative_row_still_gives_labels(play) -> None:
    scene = play(count=2, task=CONVNET)
    flipped = {name: value.abs() for name, value in scene.seen.update.items()}
    for way in (Evolved(), Evolved(published=True), Lowest(), Minimum()):
        read = way.read(type(scene.seen)(**{**vars(scene.seen), "update": flipped}), Rng(0))
        assert len(read.labels) == 2
        assert isinstance(way, Evolved) or not read.confidence.any()


def test_a_model_without_a_last_linear_layer_is_refused_in_a_sentence(play) -> None:
    seen = play(count=2, task=CONVNET).seen
    bare = type(seen)(**{**vars(seen), "params": {k: v for k, v in seen.params.items() if v.ndim != 2}})
    for way in (Evolved(), Lowest(), Minimum()):
        with pytest.raises(Unsuited, match="labels=joint"):
            way.read(bare, Rng(0))


def test_efficientnet_knows_what_is_on_a_photograph() -> None:
    from pathlib import Path

    import skimage
    from PIL import Image

    from gradleak.world.data import _resized, _stack

    folder = Path(skimage.__file__).parent / "data"
    x = _stack([_resized(Image.open(folder / name), 224) for name in ("coffee.png", "chelsea.png")])
    model = registry.build("model", parse("efficientnet_lite0"))
    with torch.no_grad():
        found = model.build((3, 224, 224), 1000).eval()(x).argmax(1).tolist()
    assert found[0] == 967 and found[1] in (281, 282, 285)  # an espresso, a cat
    assert model.build((3, 64, 64), 7)[-1].out_features == 7


def test_other_sizes_and_class_numbers() -> None:
    spec = "relabelled(resized(photos(size=8, count=10), size=12), to=(5, 1, 2, 3, 4, 0, 6, 7, 8, 11), of=12)"
    images = registry.build("data", parse(spec)).load()
    assert images.x.shape[1:] == (3, 12, 12) and len(images.classes) == 12 and images.classes[5] == "astronaut"
    assert float(images.x.min()) >= 0 and float(images.x.max()) <= 1 and int(images.y.max()) == 11
    with pytest.raises(UsageError, match="one a class"):
        registry.build("data", parse("relabelled(photos(size=8, count=10), to=(1, 2), of=3)")).load()
