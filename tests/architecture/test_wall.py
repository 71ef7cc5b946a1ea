"""The wall: attacks never reach the truth, by import or by value."""

import ast
from pathlib import Path

import pytest
import torch

import gradleak
from gradleak import registry
from gradleak.rng import Rng
from gradleak.spec import parse

ROOT = Path(gradleak.__file__).parent
FORBIDDEN = ("gradleak.world", "gradleak.metrics", "gradleak.audit", "gradleak.engines", "gradleak.report")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def walk(path: Path) -> set[str]:
    """Everything a file imports from this package, directly or through others."""
    seen: set[str] = set()
    queue = [path]
    while queue:
        for name in imports(queue.pop()):
            if name in seen or not name.startswith("gradleak"):
                continue
            seen.add(name)
            place = ROOT.parent / name.replace(".", "/")
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.is_file() and name != "gradleak":
                    queue.append(file)
    return seen


@pytest.mark.parametrize("path", sorted((ROOT / "attacks").rglob("*.py")), ids=lambda p: p.stem)
def test_no_attack_reaches_behind_the_wall(path: Path) -> None:
    bad = {name for name in walk(path) if name.startswith(FORBIDDEN)}
    assert not bad


@pytest.mark.parametrize("path", sorted((ROOT / "defenses").rglob("*.py")), ids=lambda p: p.stem)
def test_defenses_need_only_types(path: Path) -> None:
    assert not {name for name in walk(path) if name.startswith((*FORBIDDEN, "gradleak.attacks"))}


def test_the_walk_sees_through_modules(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("from gradleak.engines import here\n")
    assert any(name.startswith("gradleak.world") for name in walk(file))


def test_the_attackers_stream_does_not_lead_to_the_clients(monkeypatch, tmp_path) -> None:
    from gradleak.attacks.exact.linear import Linear
    from gradleak.audit.plan import Audit
    from gradleak.audit.run import run_cell
    from gradleak.audit.store import CellDir

    handed = []
    plain = Linear.guesses

    def watched(self, seen, rng, start=None):
        handed.append(rng)
        return plain(self, seen, rng)

    monkeypatch.setattr(Linear, "guesses", watched)
    task = "image(model=mlp(width=16), data=photos(size=16, count=40))"
    (cell,) = Audit(task=task, attacks=("linear",), threats=("curious",), trials=1, seed=11).cells()
    run_cell(cell, CellDir(tmp_path / "cell"), lambda share: None)
    assert handed and all(rng.seed != 11 and rng.path == () for rng in handed)


LEARNING = "ridge_inverter(features=200)"
PUBLIC = "image(model=lenet, data=photos(size=16, count=40), public=20)"


@pytest.mark.parametrize("attack", ["dlg(steps=3, restarts=2)", "ig(steps=3, restarts=1)", "hf_gradinv(steps=3)",
                                    LEARNING])
@pytest.mark.parametrize("defense", ["none", "sign", "prune(keep=0.2)"])
def test_guesses_do_not_depend_on_the_secret_after_observation(
    play, attack: str, defense: str, monkeypatch, tmp_path,
) -> None:
    def answer(spoil: bool) -> torch.Tensor:
        monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / str(spoil)))  # a kept fit would hide what it was made of
        scene = play(defense, "informed+public_data", count=2, task=PUBLIC) if attack == LEARNING else play(
            defense, count=2)
        secret, images = scene.secret, scene.world.take.images
        kept = images.x.clone(), images.y.clone()
        if spoil:
            for tensor in (secret.readings, secret.labels, secret.batch.x, secret.batch.y, images.x, images.y):
                tensor.zero_()
        *_, last = registry.build("attack", parse(attack)).guesses(scene.seen, Rng(1))
        images.x.copy_(kept[0])
        images.y.copy_(kept[1])
        return last.reading

    assert torch.equal(answer(False), answer(True))


LEARNING_WORDS = "ridge_inverter(passages=100, rounds=1)"


@pytest.mark.parametrize("attack", ["lamp(steps=3)", "tag(steps=3)", "dlg(steps=3)", "subspace",
                                    "grab(steps=2, rounds=1, sweeps=1)", LEARNING_WORDS])
@pytest.mark.parametrize("defense", ["none", "prune(keep=0.2)"])
def test_guesses_of_words_do_not_depend_on_the_secret_either(
    play, text_task, attack: str, defense: str, monkeypatch, tmp_path,
) -> None:
    who, more = ("+public_data", ", public=2") if attack == LEARNING_WORDS else ("", "")

    def answer(spoil: bool) -> torch.Tensor:
        monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / str(spoil)))
        scene = play(defense, f"informed+labels+lengths{who}", 2, "one_step(mode=eval)", task=text_task(more=more))
        secret, rows = scene.secret, scene.world.take.rows
        kept = [row.clone() for row in rows]
        if spoil:
            for tensor in (secret.readings, secret.labels, secret.batch.x, secret.batch.y, *secret.batch.extra.values(),
                           *rows):
                tensor.zero_()
        *_, last = registry.build("attack", parse(attack)).guesses(scene.seen, Rng(1))
        for row, was in zip(rows, kept, strict=True):
            row.copy_(was)
        return last.reading

    assert torch.equal(answer(False), answer(True))
