"""Updates as real training sends them: recorded, diagnosed, attacked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gradleak import capture, registry
from gradleak.capture.audit import audit
from gradleak.capture.diagnose import findings
from gradleak.capture.files import Said, open_update
from gradleak.capture.format import find, read
from gradleak.capture.recover import attack
from gradleak.capture.rounding import unrounded
from gradleak.errors import UsageError
from gradleak.spec import parse

SPEC, SHAPE = "mlp(width=24)", (3, 8, 8)


def build(spec: str = SPEC) -> nn.Module:
    torch.manual_seed(0)
    return registry.build("model", parse(spec)).build(SHAPE, 10)  # type: ignore[no-any-return]


def batch(count: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(count, *SHAPE), torch.arange(count) % 10


Loss = Callable[[Tensor, Tensor], Tensor]


def trained(
    into: Path, optimiser: Callable[..., torch.optim.Optimizer], loss: Loss = F.cross_entropy, steps: int = 1,
    count: int = 1, spec: str = SPEC, evaluate: bool = False,
) -> Path:
    model, (x, y) = build(spec), batch(count)
    model.train(not evaluate)
    weights = optimiser(model.parameters())
    with capture.update(model, into, spec=spec, shape=SHAPE, classes=10, count=count):
        for _ in range(steps):
            weights.zero_grad()
            loss(model(x), y).backward()
            weights.step()
    return into


def sgd(**more: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda weights: torch.optim.SGD(weights, 0.1, **more)


def found(path: Path, **said: str) -> dict[str, bool]:
    return {f.what: f.blocks for f in findings(open_update(path, Said(**said)))}  # type: ignore[arg-type]


def test_a_plain_step_is_read_back_exactly(tmp_path: Path) -> None:
    path = trained(tmp_path / "c", sgd())
    outcome = attack(path, "linear")
    assert outcome.explained and torch.allclose(outcome.images[0], batch()[0][0], atol=1e-3)
    assert found(path) == {}
    note = read(path).note
    assert note.sent == "difference" and note.count == 1 and note.training.optimiser["lr"] == 0.1
    assert note.training.loss["name"] == "cross_entropy" and note.training.mode == "train"


def test_a_gradient_alone_can_be_captured_and_an_error_writes_nothing(tmp_path: Path) -> None:
    model, (x, y) = build(), batch()
    with capture.update(model, tmp_path / "g", spec=SPEC, shape=SHAPE):
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            model(x)
    assert read(tmp_path / "g").note.sent == "gradient" and read(tmp_path / "g").note.training.counts == (1,)
    assert attack(tmp_path / "g", "linear").explained
    with pytest.raises(ZeroDivisionError), capture.update(model, tmp_path / "no"):
        1 / 0  # noqa: B018
    with pytest.raises(UsageError, match="nothing to capture"), capture.update(build(), tmp_path / "no"):
        pass
    with pytest.raises(UsageError, match="already"), capture.update(model, tmp_path / "g"):
        F.cross_entropy(model(x), y).backward()
    assert not (tmp_path / "no").exists()


def mse(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out, F.one_hot(y, 10).float())


def smooth(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, label_smoothing=0.1)


def short(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


@pytest.mark.parametrize(("what", "blocks", "how"), [
    ("several local steps", True, {"optimiser": sgd(), "steps": 3}),
    ("momentum", True, {"optimiser": sgd(momentum=0.9), "steps": 2}),
    ("Adam", False, {"optimiser": torch.optim.Adam}),
    ("Adam", True, {"optimiser": torch.optim.AdamW, "steps": 2}),
    ("another optimiser", True, {"optimiser": torch.optim.Adagrad}),
    ("weight decay", False, {"optimiser": sgd(weight_decay=0.01)}),
    ("another loss", True, {"optimiser": sgd(), "loss": mse}),
    ("label smoothing", True, {"optimiser": sgd(), "loss": smooth}),
])
def test_the_doctor_gives_the_right_reason(tmp_path: Path, what: str, blocks: bool, how: dict[str, object]) -> None:
    said = found(trained(tmp_path / "c", **how))  # type: ignore[arg-type]
    assert said[what] is blocks
    assert set(said) <= {what, "several local steps", "weight decay"}, said


def test_a_clean_momentum_and_weight_decay_do_not_hinder(tmp_path: Path) -> None:
    path = trained(tmp_path / "c", sgd(weight_decay=0.01, momentum=0.9))
    assert attack(path, "linear").left.l2 < 1e-3 and found(path) == {"weight decay": False}


@pytest.mark.parametrize("evaluate", [False, True])
def test_the_doctor_sees_batchnorms_mode_in_the_numbers(tmp_path: Path, evaluate: bool) -> None:
    path = trained(tmp_path / "c", sgd(), count=4, spec="resnet20", evaluate=evaluate)
    assert found(path) == {}
    wrong = "one_step(mode=train)" if evaluate else "one_step(mode=eval)"
    assert found(path, client=wrong) == {"BatchNorm mode": True}


def test_the_doctor_reads_bare_files_too(tmp_path: Path) -> None:
    def bare(name: str, update: dict[str, Tensor]) -> dict[str, bool]:
        save_file({k: v.contiguous() for k, v in update.items()}, tmp_path / name)
        return found(tmp_path / name, model=SPEC, params=tmp_path / "before", shape="3,8,8")

    path = trained(tmp_path / "c", sgd())
    save_file(load_file(path / "before.safetensors"), tmp_path / "before")
    plain = {k: v / 0.1 for k, v in load_file(path / "update.safetensors").items()}
    assert bare("plain", plain) == {}
    assert bare("half", {k: v.half() for k, v in plain.items()})["mixed precision"]
    assert bare("signs", {k: v.sign() for k, v in plain.items()})["Adam"] is False
    assert bare("zero", {k: torch.zeros_like(v) for k, v in plain.items()})["nothing sent"]
    steps = load_file(trained(tmp_path / "d", sgd(), steps=4) / "update.safetensors")
    assert bare("steps", steps)["several local steps"]
    other = load_file(trained(tmp_path / "e", sgd(), mse) / "update.safetensors")
    assert bare("other", other)["another loss"]
    part = {k: v for k, v in plain.items() if k != "1.bias"}
    assert bare("part", part) == {"missing parameters": False}


def test_autocast_is_seen(tmp_path: Path) -> None:
    model, (x, y) = build(), batch()
    with capture.update(model, tmp_path / "c", spec=SPEC, shape=SHAPE), torch.autocast("cpu", torch.bfloat16):
        F.cross_entropy(model(x), y).backward()
    assert found(tmp_path / "c")["mixed precision"]


def test_rounding_is_taken_out_of_differences_and_nothing_else() -> None:
    torch.manual_seed(0)
    before = {"w": torch.randn(60, 40) * 0.05}
    true = 1e-4 * torch.randn(60, 3) @ torch.randn(3, 40)
    sent = before["w"] - (before["w"] - true)
    assert torch.linalg.matrix_rank(sent.double(), rtol=1e-6) > 10
    clean = unrounded({"w": sent, "b": sent[0]}, before)
    assert torch.linalg.matrix_rank(clean["w"].double(), rtol=1e-6) == 3 and torch.equal(clean["b"], sent[0])
    assert (clean["w"] - true).norm() < (sent - true).norm()
    full = torch.randn(60, 40)
    assert torch.equal(unrounded({"w": full}, before)["w"], full)


def test_a_folder_of_text_updates_is_audited(tmp_path: Path, text_task) -> None:
    transformers = pytest.importorskip("transformers")
    folder = text_task("bert", width=96).split("'")[1]
    net = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    net.bert.embeddings.requires_grad_(False)
    words, y = ["the old dog ran", "she was not very good"], torch.tensor([1, 0])
    optimiser = torch.optim.SGD(net.parameters(), 1.0)
    torch.manual_seed(0)
    with capture.update(net, tmp_path / "in" / "a", spec=f"hf('{folder}')", task="text", classes=2):
        net(**tokenizer(words, padding=True, return_tensors="pt"), labels=y).loss.backward()
        optimiser.step()
    assert len(find(tmp_path / "in")) == 1 and read(tmp_path / "in" / "a").note.count == 2
    quiet = Console(quiet=True)
    assert audit(tmp_path / "in", [], Said(), tmp_path / "out", quiet, quiet) == 1
    said = (tmp_path / "out" / "a" / "sentences.txt").read_text().splitlines()
    assert sorted(said) == sorted(words)
    assert audit(tmp_path / "in", ["linear"], Said(), tmp_path / "out", quiet, quiet) == 3


@pytest.mark.parametrize(("change", "says"), [
    ({"version": 2}, "reads version 1"), ({"format": "x"}, "format"), ({"sent": "email"}, "makes no sense"),
    ({"count": -1}, "makes no sense"), ({"count": True}, "makes no sense"), ({"shape": [3, "8"]}, "makes no sense"),
    ({"more": 1}, "unknown key"), ({"training": {"optimizer": {}}}, "did you mean 'optimiser'"),
    ({"training": []}, "table"), ({"sent": None}, "sent must be"),
])
def test_a_note_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    path = trained(tmp_path / "c", sgd())
    file = path / "capture.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UsageError, match=says):
        read(path)
