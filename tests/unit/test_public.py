"""Public examples: named by the task, granted by the threat, never the private ones; and fits that are kept."""

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from gradleak import registry
from gradleak.attacks.learned import fit, keep
from gradleak.attacks.learned.fit import Learned
from gradleak.audit.plan import Audit, checked
from gradleak.errors import UsageError
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Batch, Guess, Know, Observation, Public
from gradleak.world.public import marked

TASK = "image(model=mlp(width=8), data=npz('{}'), public={})"


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Random pictures: private ones, and others."""
    folder = tmp_path_factory.mktemp("pictures")

    def save(name: str, count: int, size: int = 8, classes: int = 10, seed: int = 0) -> None:
        x = np.random.default_rng(seed).integers(0, 255, (count, size, size, 3), dtype=np.uint8)
        np.savez(folder / name, x=x, y=np.arange(count) % classes)

    save("private", 40)
    save("part", 20)
    save("other", 30, seed=1)
    save("large", 30, size=16)
    save("few", 9, classes=3, seed=1)
    return folder


@pytest.fixture(scope="session")
def task(files):
    """A task whose public examples are those named, files of this module included."""
    return lambda public: TASK.format(f"{files}/private.npz", public.replace("npz('", f"npz('{files}/"))


@pytest.fixture
def told(play, task):
    def public(which: str) -> Public:
        fact = play(task=task(which), who="curious+public_data").seen.facts[Know.PUBLIC_DATA]
        assert isinstance(fact, Public)
        return fact

    return public


def test_so_many_are_set_apart(told, task, open_world) -> None:
    public, world = told("12"), open_world(task("12"))
    private = set(marked(world.secret(world.pool.tolist()).readings))
    assert len(public) == 12 and public.labels is not None and len(world.pool) == 28
    assert not private & set(marked(public.readings))


def test_twins_of_public_examples_are_not_private(open_world, tmp_path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (10, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=np.concatenate([x, x]), y=np.arange(20) % 4)
    world = open_world(f"image(model=mlp(width=8), data=npz('{tmp_path}/a.npz'), public=5)")
    private = set(marked(world.secret(world.pool.tolist()).readings))
    assert private and not private & set(marked(world.public.readings))


def test_other_data(told) -> None:
    public = told("npz('other.npz')")
    assert public.readings.shape == (30, 3, 8, 8) and public.labels is not None
    assert len(told("subset(npz('other.npz'), 7)")) == 7
    some = told("halves(npz('other.npz'), share=0.25, count=12)")
    assert some.labels is not None and int((some.labels < 5).sum()) == 3


def test_what_is_not_granted_is_not_told(play, task) -> None:
    assert Know.PUBLIC_DATA not in play(task=task("12")).seen.facts


@pytest.mark.parametrize(("public", "says"), [
    ("npz('part.npz')", "20 of its 20 examples are private"), ("npz('large.npz')", "3 x 16 x 16"), ("40", "set apart"),
    ("npz('few.npz')", "3 classes, the private data 10"), ("0", "set apart"),
    ("subset(npz('other.npz'), 900)", "30 examples"),
    ("halves(npz('other.npz'), share=1, count=20)", "one half of the classes")])
def test_useless_examples_are_refused(task, public: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.build("task", parse(task(public))).open(Rng(0))


def test_granting_what_no_task_names_is_refused(task) -> None:
    with pytest.raises(UsageError, match="public=5000"):
        checked(Audit(task=task("none"), threats=("curious+public_data",)))


def test_public_sentences(play, text_task) -> None:
    facts = play(task=text_task(more=", public=2"), who="curious+public_data+token_frequencies").seen.facts
    public, shares = facts[Know.PUBLIC_DATA], facts[Know.TOKEN_FREQUENCIES]
    assert isinstance(public, Public) and len(public) == 2 and public.labels is not None
    assert isinstance(shares, torch.Tensor) and float(shares.sum()) == pytest.approx(1)
    assert set(shares.nonzero().flatten().tolist()) == set(public.readings.flatten().tolist()) - {NOTHING}


def test_private_sentences_are_not_public(text_task) -> None:
    spec = text_task()
    same = spec.partition("data=")[2].removesuffix(")")
    with pytest.raises(UsageError, match="handed the truth"):
        registry.build("task", parse(f"{spec[:-1]}, public={same})")).open(Rng(0))


@torch.no_grad()
def test_a_rehearsal_goes_through_the_defense(play, task) -> None:
    scene = play("noise(sigma=0.1)", "informed", task=task("none"))
    batch = scene.secret.batch
    one, same, other, still = (scene.seen.rehearse(batch, rng) for rng in (Rng(1), Rng(1), Rng(2), None))
    name = next(iter(one))
    assert torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name])
    assert float((one[name] - still[name]).std()) == pytest.approx(0.1, rel=0.3)
    naive = play("noise(sigma=0.1)", "curious", task=task("none")).seen
    assert torch.equal(naive.rehearse(batch, Rng(1))[name], still[name])


@dataclass(frozen=True)
class Counting:
    """Learns a number, one step at a time."""

    steps: int = 6
    about: tuple[object, ...] = ()
    needs = frozenset({Know.PUBLIC_DATA})
    evaluations = 1

    def open(self, seen: Observation, rng: Rng) -> "Counting":
        return self

    def begin(self, rng: Rng):
        return {"step": torch.tensor(0), "sum": torch.zeros(1)}

    def advance(self, state, rng: Rng):
        return {"step": state["step"] + 1, "sum": state["sum"] + rng.uniform((1,), state["sum"])}

    def finish(self, state):
        return {"sum": state["sum"]}

    def read(self, state) -> Guess:
        return Guess(Batch(state["sum"], torch.zeros(1)), state["sum"])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    monkeypatch.setattr(fit, "PULSE", 0.0)
    monkeypatch.setattr(fit, "SAVE", 0.0)
    return tmp_path / "fits"


def test_a_fit_is_learned_once_and_goes_on_where_it_stopped(play, task, cache) -> None:
    seen, attack = play(task=task("12"), who="curious+public_data").seen, Learned(Counting())
    under_way = attack.guesses(seen, Rng(1))
    steps = [next(under_way).step for _ in range(3)]
    assert steps == [1, 2, 3] and [f.suffix for f in cache.iterdir()] == [".part"]
    under_way.close()
    rest = list(attack.guesses(seen, Rng(2)))
    assert [guess.step for guess in rest] == [4, 5, 6]
    assert [f.suffix for f in cache.iterdir()] == [".safetensors"]
    (again,) = attack.guesses(seen, Rng(3))
    for file in cache.iterdir():
        file.write_bytes(b"broken")
    anew = list(attack.guesses(seen, Rng(4)))
    assert len(anew) == 6 and torch.equal(anew[-1].reading, again.reading)
    assert torch.equal(rest[-1].reading, again.reading)


def test_a_fit_is_known_by_all_it_depends_on(play, task) -> None:
    def of(defense: str = "none", who: str = "informed+public_data", public: str = "12", **more) -> str:
        seen = play(defense, who, task=task(public), **more).seen
        return keep.digest(seen, frozenset({Know.PUBLIC_DATA}), "spec")

    assert of() == of(trial=1)
    different = [of(), of("sign"), of("noise(sigma=0.1)"), of("noise(sigma=0.2)"), of(public="13"), of(count=2),
                 of(client="local_steps(steps=2)")]
    assert len(set(different)) == len(different)
    assert of("sign", "curious+public_data") == of()


def test_old_fits_go(cache, monkeypatch) -> None:
    monkeypatch.setenv("GRADLEAK_CACHE_GB", "0.00001")
    for number, name in enumerate("abc"):
        keep.Place(name).keep({"x": torch.zeros(1500)})
        os.utime(cache / f"{name}.safetensors", (number, number))
    assert [f.stem for f in cache.iterdir()] == ["c"]


def test_a_folder_that_cannot_be_written_keeps_nothing(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "file"))
    keep.Place("a").keep({"x": torch.zeros(1)})
    assert keep.Place("a").finished() is None
