"""Every recipe succeeds where it should and fails where it should."""

import pytest

from gradleak import registry
from gradleak.attacks.combine import Restart, Stages
from gradleak.attacks.descent import Descent
from gradleak.metrics.image import blind, peak_signal_to_noise
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import Guess

LENET = "image(model=lenet, data=photos(size=16, count=40))"
MLP = "image(model=mlp(width=64), data=photos(size=16, count=40))"
CONVNET = "image(model=convnet(width=16), data=photos(size=16, count=40))"


def last(attack, seen) -> Guess:
    *_, guess = attack.guesses(seen, Rng(0))
    return guess


def psnr(scene, attack: str) -> float:
    guess = last(registry.build("attack", parse(attack)), scene.seen)
    return peak_signal_to_noise(guess.reading[0], scene.secret.readings[0])


@pytest.mark.parametrize(("attack", "task"), [
    ("dlg(steps=300, restarts=1)", LENET),
    ("idlg(steps=300, restarts=1)", LENET),
    ("ig(steps=400, restarts=1)", LENET),
    ("ig(steps=300, restarts=1)", CONVNET),
    ("ig(steps=300, restarts=1, published=true)", CONVNET),
    ("dlg(steps=150, restarts=1, published=true, labels=counted)", MLP),  # with joint ones it hangs on the start
])
def test_undefended_images_come_back_and_noisy_ones_do_not(play, attack: str, task: str) -> None:
    scene, noisy = play(task=task), play("noise(relative=10)", task=task)
    floor = peak_signal_to_noise(blind(scene.secret.readings)[0], scene.secret.readings[0])
    assert psnr(scene, attack) > max(20, floor + 3)
    assert psnr(noisy, attack) < max(20, floor + 3)


def test_linear_is_exact_for_one_and_reads_most_of_a_batch(play) -> None:
    assert psnr(play(task=MLP), "linear") > 60
    scene = play(count=4, task="image(model=mlp(width=512), data=photos(size=16, count=40))")
    guess = last(registry.build("attack", parse("linear")), scene.seen)
    best = [max(peak_signal_to_noise(g, t) for g in guess.reading) for t in scene.secret.readings]
    assert sum(value > 25 for value in best) >= 2


@pytest.mark.parametrize("defense", ["sign", "prune(keep=0.1)"])
def test_knowing_the_defense_helps(play, defense: str) -> None:
    def mean(who: str) -> float:
        return sum(psnr(play(defense, who, trial=t), "ig(steps=300, restarts=1)") for t in range(2)) / 2

    assert mean("informed") > mean("curious") + 1


def test_more_starts_never_explain_less(play) -> None:
    seen = play().seen
    one = Descent(40)
    many = [residual(seen, last(Restart(one, n), seen).batch).cosine for n in (1, 4)]
    assert many[1] <= many[0] * 1.05


def test_stages_keep_the_best_and_hand_it_over(play) -> None:
    seen = play().seen
    first, second = Descent(60), Descent(20, rate=0.01)
    both = residual(seen, last(Stages((first, second)), seen).batch).cosine
    assert both <= residual(seen, last(first, seen).batch).cosine * 1.0001
    alone = residual(seen, last(second, seen).batch).cosine
    assert both < alone


def right(scene, attack: str) -> float:
    """The share of words that are right and in their place."""
    words = scene.world.vocabulary
    rows = last(registry.build("attack", parse(attack)), scene.seen).reading, scene.secret.readings
    found, truth = (words.sentence(row[0]).tokens for row in rows)
    return sum(a == b for a, b in zip(found, truth, strict=True)) / len(truth)


@pytest.mark.parametrize("trial", [0, 1])
@pytest.mark.parametrize("who", ["curious", "curious+labels+lengths"])
def test_lamp_reads_an_undefended_sentence_word_for_word(play, text_task, who: str, trial: int) -> None:
    scene = play("none", who, 1, "one_step(mode=eval)", trial, text_task())
    assert right(scene, "lamp(steps=200)") == 1


def test_lamp_reads_two_sentences(play, text_task) -> None:
    scene = play("none", "curious+labels+lengths", 2, "one_step(mode=eval)", 0, text_task())
    guess = last(registry.build("attack", parse("lamp(steps=300)")), scene.seen)
    found, truth = ({scene.world.vocabulary.sentence(row).text for row in rows}
                    for rows in (guess.reading, scene.secret.readings))
    assert found == truth


@pytest.mark.parametrize("attack", ["lamp(steps=150)", "tag(steps=60)", "dlg(steps=60)"])
def test_strong_noise_hides_the_sentence(play, text_task, attack: str) -> None:
    scene = play("noise(relative=30)", "informed+labels+lengths", 1, "one_step(mode=eval)", 0, text_task())
    assert right(scene, attack) < 0.5


@pytest.mark.parametrize(("attack", "trial"), [("tag(steps=400)", 1), ("dlg(steps=400)", 0)])
def test_plain_matching_reads_most_words(play, text_task, attack: str, trial: int) -> None:
    scene = play("none", "curious+labels+lengths", 1, "one_step(mode=eval)", trial, text_task())
    assert right(scene, attack) > 0.5
