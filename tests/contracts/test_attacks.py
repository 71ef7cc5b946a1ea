"""What every registered attack on images must hold, those of other packages included; for text see the next file."""

import inspect

import pytest
import torch

from gradleak import registry
from gradleak.attacks.combine import ByKind, Restart, Stages
from gradleak.attacks.descent import Descent
from gradleak.attacks.exact.linear import Linear
from gradleak.attacks.exact.patches import Patches
from gradleak.attacks.exact.recursive import Recursive
from gradleak.audit.plan import Audit
from gradleak.audit.run import run_cell
from gradleak.audit.store import CellDir
from gradleak.errors import Unsuited, UsageError
from gradleak.rng import Rng
from gradleak.spec import Call, parse
from gradleak.threats import PROTOCOL
from gradleak.types import Attack, Guess, Know

SHORT = {"steps": 12, "restarts": 2, "features": 400, "fit": 3, "latent": 8, "epochs": 2, "hidden": (8, 8), "size": 8,
         "ratio": 0.01}
MLP = "image(model=mlp(width=64), data=photos(size=16, count=40))"


def short(name: str) -> Attack:
    known = inspect.signature(registry.maker("attack", name)).parameters
    return registry.build("attack", Call(name, (), tuple((k, v) for k, v in SHORT.items() if k in known)))


READS = {"dlg": {"image", "text"}, "idlg": {"image"}, "ig": {"image"}, "linear": {"image"}, "tag": {"text"},
         "lamp": {"text"}, "grab": {"text"}, "gi_gip": {"image"}, "gradinversion": {"image"}, "hf_gradinv": {"image"},
         "lti": {"image", "text"}, "lti_p": {"text"}, "recursive": {"image"}, "ridge_inverter": {"image", "text"},
         "subspace": {"image", "text"}}
"""An attack of another package is taken for one on images."""

TASKS = {"recursive": "image(model=lenet, data=photos(size=16, count=40))",
         "subspace": "image(model=vit(patch=4, width=160, layers=2, heads=2), data=photos(size=16, count=40))"}
"""What attacks are made for that solve instead of searching. They may refuse anything else, in a sentence."""


@pytest.fixture(params=[name for name in registry.names("attack") if "image" in READS.get(name, {"image"})])
def attack(request) -> Attack:
    return short(request.param)


@pytest.fixture
def play(request, play):
    """The model an attack is made for, if there is only one; and what it needs is granted."""
    name = request.node.callspec.params.get("attack", "") if hasattr(request.node, "callspec") else ""
    needs = short(name).needs - PROTOCOL if isinstance(name, str) and name else frozenset()

    def played(defense="none", who="informed", **options):
        if name in TASKS and options.get("task") == MLP:
            options["task"] = TASKS[name]
        if Know.PUBLIC_DATA in needs and "task" in options:
            options["task"] = options["task"].removesuffix(")") + ", public=20)"
        return play(defense, "+".join([who, *sorted(know.value for know in needs)]), **options)

    return played


def answers(attack: Attack, seen, start: Guess | None = None) -> list[Guess]:
    try:
        return list(attack.guesses(seen, Rng(2), start))
    except Unsuited as problem:
        if not isinstance(attack.images if isinstance(attack, ByKind) else attack, Recursive | Patches):
            raise
        assert "\n" not in str(problem) and len(str(problem)) < 250
        pytest.skip(str(problem))


@pytest.mark.parametrize("defense", ["none", "sign", "prune(keep=0.2)", "noise(relative=1)", "clip(norm=0.1)"])
@pytest.mark.parametrize("count", [1, 3])
def test_every_defense_can_be_faced(play, attack: Attack, defense: str, count: int) -> None:
    last = answers(attack, play(defense, count=count, task=MLP).seen)[-1]
    assert last.reading.shape == (count, 3, 16, 16)
    assert last.step == last.steps
    assert float(last.reading.min()) >= 0 and float(last.reading.max()) <= 1


def test_same_seed_same_guess(play, attack: Attack) -> None:
    one, other = (answers(attack, play(count=2, task=MLP).seen)[-1] for _ in range(2))
    assert torch.equal(one.reading, other.reading) and torch.equal(one.batch.y, other.batch.y)


def test_going_on_from_any_guess_changes_nothing(play, attack: Attack) -> None:
    seen = play(count=2, task=MLP).seen
    whole = answers(attack, seen)
    for middle in (*whole[:-1][::5], whole[-1]):
        rest = [middle, *answers(attack, seen, middle)]
        assert torch.equal(rest[-1].reading, whole[-1].reading)
        assert torch.equal(rest[-1].batch.y, whole[-1].batch.y)


@pytest.mark.parametrize("attack", [
    Stages((Descent(6), Descent(6, rate=0.01))),
    Restart(Stages((Descent(4), Descent(4))), 2),
    Stages((Linear(), Descent(5))),
], ids=["stages", "restarted stages", "exact first"])
def test_compositions_go_on_from_any_guess(play, attack: Attack) -> None:
    seen = play(count=2, task=MLP).seen
    whole = answers(attack, seen)
    for middle in whole:
        rest = [middle, *answers(attack, seen, middle)]
        assert torch.equal(rest[-1].reading, whole[-1].reading)


@pytest.mark.parametrize("spec", ["dlg(restarts=0)", "ig(steps=-3)", "dlg(steps=0)"])
def test_impossible_settings_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        registry.build("attack", parse(spec))


def test_local_steps_can_be_faced(play, attack: Attack) -> None:
    last = answers(attack, play(count=4, client="local_steps(steps=2, rate=0.05)", task=MLP).seen)[-1]
    assert bool(last.reading.isfinite().all())


@pytest.mark.parametrize("name", registry.names("attack"))
def test_needs_are_knowledge(name: str) -> None:
    assert all(isinstance(need, Know) for need in short(name).needs)
    assert short(name).evaluations >= 1


@pytest.mark.parametrize("name", [name for name, kinds in READS.items() if len(kinds) == 1])
def test_the_wrong_kind_of_data_is_refused_in_a_sentence(play, text_task, name: str) -> None:
    (reads,) = READS[name]
    seen = play(task=MLP if reads == "text" else text_task(), who="curious+labels+lengths").seen
    with pytest.raises(Unsuited) as caught:
        answers(short(name), seen)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(("name", "kind"), [("ig", "text"), ("tag", "image")])
def test_the_wrong_kind_of_data_is_a_row(text_task, tmp_path, name: str, kind: str) -> None:
    task = MLP if kind == "image" else text_task()
    (cell,) = Audit(task=task, attacks=(f"{name}(steps=3)",), threats=("curious",), trials=1).cells()
    folder = CellDir(tmp_path / "cell")
    run_cell(cell, folder, lambda share: None)
    (trial,) = folder.trials()
    assert folder.done and "does not apply" in trial["failed"] and f"the data are {kind}" in trial["failed"]


def test_linear_says_where_it_does_not_apply(play) -> None:
    with pytest.raises(Unsuited, match="fully connected"):
        answers(short("linear"), play().seen)
