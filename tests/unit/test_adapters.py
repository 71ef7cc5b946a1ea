"""Clients that train adapters only: which attacks still read them, and which say why they cannot."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gradleak import capture, registry
from gradleak.attacks.exact.entrance import entrance
from gradleak.attacks.exact.span import behind
from gradleak.capture.recover import attack
from gradleak.errors import Unsuited, UsageError
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Guess

OWN = """
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Adapted(nn.Module):
    def __init__(self, layer, rank, spread):
        super().__init__()
        self.layer, wide = layer, layer.in_features
        self.down, self.up = nn.Linear(wide, rank, bias=False), nn.Linear(rank, wide, bias=False)
        nn.init.normal_(self.up.weight, std=spread) if spread else nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + 2 * self.up(self.down(x))


def adapted(classes, rank, spread):
    net = AutoModelForSequenceClassification.from_pretrained(
        "FOLDER", num_labels=classes, num_hidden_layers=3, attn_implementation="eager")  # the last one tells little
    net.base_model.requires_grad_(False)
    for layer in net.base_model.encoder.layer:
        part = layer.attention.self
        part.query, part.value = (Adapted(old, rank, spread) for old in (part.query, part.value))
    return net, AutoTokenizer.from_pretrained("FOLDER")


def fresh4(classes): return adapted(classes, 4, 0)
def fresh16(classes): return adapted(classes, 16, 0)
def fresh32(classes): return adapted(classes, 32, 0)
def trained8(classes): return adapted(classes, 8, 0.05)
"""


@pytest.fixture(scope="session")
def adapted(text_task, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A task whose client trains adapters of that kind, written by hand."""
    folder, task = tmp_path_factory.mktemp("adapted"), text_task("bert", "", 96)
    model = re.search(r"hf\('([^']+)'\)", task)
    assert model
    (folder / "adapted_by_hand.py").write_text(OWN.replace("FOLDER", model.group(1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        __import__("adapted_by_hand")
    return lambda kind: task.replace(model.group(), f"python('adapted_by_hand:{kind}')")


def sentences(rows: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(token for token in row.tolist() if token != NOTHING) for row in rows}


def attacked(seen, name: str = "subspace") -> Guess:
    return list(registry.build("attack", parse(name)).guesses(seen, Rng(0)))[-1]


def test_what_is_told_behind_a_map_is_all_that_it_maps_into_the_span() -> None:
    draw = Rng(0) / "behind"
    like = torch.zeros(1, dtype=torch.float64)
    x, maps = (draw / "x").normal((5, 40), like), [(draw / n).normal((9, 40), like) for n in "ab"]
    told = [(m, (draw / "d" / n).normal((60, 5), like) @ (x @ m.mT)) for n, m in enumerate(maps)]
    found = behind(told)
    assert (found.clean, found.seen, found.free) == (True, 5, 8)
    assert float(found.off(x).max()) < 1e-12 < 1e-2 < float(found.off(torch.eye(40)).min())
    assert not behind([(maps[0][:5], told[0][1][:, :5])]).clean  # as many tokens as the rank: nothing is ruled out


@pytest.mark.parametrize(("kind", "count"), [("fresh16", 1), ("trained8", 1), ("fresh32", 2)])
def test_sentences_are_read_off_the_factors(play, adapted, kind: str, count: int) -> None:
    scene = play("none", "curious", count, "one_step(mode=eval)", 1, task=adapted(kind))
    zero = [name for name, value in scene.seen.update.items() if "down" in name and not value.any()]
    assert len(zero) == (0 if kind == "trained8" else 6)
    guess = attacked(scene.seen)
    assert sentences(guess.reading) == sentences(scene.secret.readings)
    assert guess.certain is not None and bool(guess.certain[guess.reading != NOTHING].all())
    assert residual(scene.seen, guess.batch).l2 < 1e-3


def test_the_factors_are_found_by_what_they_are_given(play, adapted) -> None:
    door = entrance(play("none", "curious", 1, "one_step(mode=eval)", task=adapted("fresh16")).seen)
    assert {one.name.replace("down", "up") for one in door.factors} == {other.name for other in door.factors.values()}
    assert len(door.factors) == 4


@pytest.mark.parametrize(("kind", "client", "defense", "says"), [
    ("fresh4", "one_step(mode=eval)", "none", "at most 2 tokens"),
    ("fresh16", "one_step(mode=train)", "none", "drops parts of the words"),
    ("fresh16", "one_step(mode=eval)", "noise(relative=0.1)", "under noise"),
])
def test_what_cannot_be_told_is_said(play, adapted, kind: str, client: str, defense: str, says: str) -> None:
    with pytest.raises(Unsuited, match=says):
        attacked(play(defense, "curious", 1, client, task=adapted(kind)).seen)


def test_matching_needs_nothing_special(play, adapted) -> None:
    seen = play("none", "curious+labels+lengths", 1, "one_step(mode=eval)", task=adapted("fresh16")).seen
    first, last = (residual(seen, attacked(seen, f"tag(steps={steps})").batch).cosine for steps in (1, 40))
    assert last < 0.95 * first


def test_without_peft_the_error_says_how_to_get_it(text_task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(UsageError, match=r"gradleak\[peft\]"):
        registry.build("task", parse(_lora(text_task))).open(Rng(0))
    with pytest.raises(UsageError, match="rank of at least 1"):
        registry.build("task", parse(_lora(text_task, "rank=0")))


def _lora(text_task, more: str = "rank=16") -> str:
    return re.sub(r"hf\('[^']+'\)", lambda found: f"lora({found.group()}, {more})", text_task("bert", "", 96))


def test_peft_reads_as_by_hand(play, text_task) -> None:
    pytest.importorskip("peft", reason="needs peft: pip install 'gradleak[peft]'")
    scene = play("none", "curious", 1, "one_step(mode=eval)", task=_lora(text_task))
    assert all("lora_" in name or name.startswith("classifier.") for name in scene.seen.update)
    assert sentences(attacked(scene.seen).reading) == sentences(scene.secret.readings)
    with pytest.raises(UsageError, match="targets='query value'"):
        registry.build("task", parse(_lora(text_task, "targets='nowhere'"))).open(Rng(0))


PEFT = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def build(classes):
    net = AutoModelForSequenceClassification.from_pretrained("FOLDER", num_labels=classes, attn_implementation="eager")
    return get_peft_model(net, LoraConfig(task_type="SEQ_CLS", r=16)), AutoTokenizer.from_pretrained("FOLDER")
"""


def test_a_captured_peft_client_is_read(text_task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", reason="needs peft: pip install 'gradleak[peft]'")
    folder = re.search(r"hf\('([^']+)'\)", text_task("bert", "", 96))
    assert folder
    (tmp_path / "own_peft_client.py").write_text(PEFT.replace("FOLDER", folder.group(1)))
    monkeypatch.syspath_prepend(tmp_path)
    torch.manual_seed(0)
    model, tokenizer = __import__("own_peft_client").build(2)
    model.eval()
    given = tokenizer(["the old dog was good"], return_tensors="pt")
    with capture.update(model, tmp_path / "one", spec="python('own_peft_client:build')", task="text", classes=2):
        model(**given, labels=torch.tensor([1])).loss.backward()
    assert attack(tmp_path / "one", "subspace").texts == ["the old dog was good"]
