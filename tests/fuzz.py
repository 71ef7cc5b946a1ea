"""Hostile inputs of three kinds, made by hypothesis; used by a short test and by a long bench.

Each maker gives bytes or edits; each `try_*` asks that they end in an answer or in one `UsageError`.
"""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, save

from gradleak.audit import drive
from gradleak.audit.plan import Audit, from_table, read
from gradleak.audit.store import Run, open_run
from gradleak.capture.files import Said, open_update
from gradleak.errors import UsageError
from gradleak.report.html import page
from gradleak.report.rows import as_json

SCRIPT = "<script>owned()</script><img src=x onerror=owned()>"
TRICKS = ["../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 5000, SCRIPT, "__metadata__", "", "..", "\ud800", "[red]"]
WORDS = st.one_of(st.sampled_from(TRICKS), st.text(max_size=20))
NUMBERS = st.one_of(st.integers(-3, 3), st.integers(), st.sampled_from([2**31, 2**63, 2**64, 10**400]),
                    st.floats(), st.booleans(), st.none())
VALUES = st.recursive(st.one_of(NUMBERS, WORDS), lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=4)), max_leaves=8)


def plain_update() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"1.weight": (4, 192), "1.bias": (4,), "3.weight": (4, 4), "3.bias": (4,), "5.weight": (10, 4),
              "5.bias": (10,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


CHANGES = [
    lambda v: v * float("nan"), lambda v: v * float("inf"), lambda v: v.long(), lambda v: v.half(),
    lambda v: v.to(torch.complex64), lambda v: v[:1], lambda v: v[None], lambda v: v * 0, lambda v: v * 1e38,
    lambda v: v.bool(), lambda v: v.to(torch.float8_e4m3fn), lambda v: v.double()]


@st.composite
def update_files(draw: Any) -> bytes:
    """A good file that was cut, overwritten, or given another head: huge shapes, wrong types, overlapping places."""
    good = save(plain_update())
    kind = draw(st.sampled_from(["noise", "cut", "bytes", "head", "length", "values"]))
    if kind == "noise":
        return draw(st.binary(max_size=200))
    if kind == "cut":
        return good[: draw(st.integers(0, len(good)))]
    if kind == "bytes":
        spoiled = bytearray(good)
        for place, byte in draw(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=6)):
            spoiled[place] = byte
        return bytes(spoiled)
    if kind == "length":
        return struct.pack("<Q", draw(st.integers(0, 2**64 - 1))) + good[8:]
    if kind == "values":
        spoiled = {name: value.clone() for name, value in plain_update().items()}
        name = draw(st.sampled_from(sorted(spoiled)))
        change = draw(st.sampled_from(CHANGES))
        spoiled[name] = change(spoiled[name]).contiguous()
        return save(spoiled)
    size = struct.unpack("<Q", good[:8])[0]
    head = json.loads(good[8 : 8 + size])
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.one_of(st.sampled_from(sorted(head)), WORDS))
        head[name] = draw(st.one_of(VALUES, st.fixed_dictionaries({
            "dtype": st.one_of(st.sampled_from(["F32", "F16", "I64", "BOOL", "F4", "X"]), VALUES),
            "shape": st.one_of(st.lists(st.integers(-1, 2**62), max_size=4), VALUES),
            "data_offsets": st.one_of(st.lists(st.integers(-1, 2**62), min_size=2, max_size=2), VALUES)})))
    text = json.dumps(head).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + good[8 + size :]


def try_update(content: bytes, folder: Path) -> str:
    path = folder / "u.safetensors"
    path.write_bytes(content)
    return _asked(lambda: open_update(path, Said(model="mlp(width=4)", shape="3,8,8")))


NOTE_KEYS = ["format", "version", "sent", "count", "model", "task", "shape", "classes", "defense", "training",
             "recorder", "round", "client", "config"]


@st.composite
def notes(draw: Any) -> dict[str, Any]:
    """A capture's note with some values replaced."""
    good = {"format": "gradleak-capture", "version": 1, "sent": "difference", "count": 1, "model": "mlp(width=4)",
            "shape": [3, 8, 8], "classes": 10, "training": {"steps": 1, "optimiser": {"name": "SGD", "lr": 0.1}}}
    spoiled = {**good, **draw(st.dictionaries(st.one_of(st.sampled_from(NOTE_KEYS), WORDS), VALUES, max_size=3))}
    if draw(st.booleans()):
        keys = st.sampled_from(["steps", "mode", "optimiser", "loss", "precision", "counts"])
        spoiled["training"] = draw(st.dictionaries(keys, st.one_of(VALUES, st.fixed_dictionaries(
            {"name": VALUES, "lr": NUMBERS, "momentum": NUMBERS, "weight_decay": NUMBERS})), max_size=3))
    return spoiled


def try_note(note: dict[str, Any], folder: Path) -> str:
    if not (folder / "update.safetensors").exists():
        for name in ("update", "before"):
            (folder / f"{name}.safetensors").write_bytes(save(plain_update()))
    (folder / "capture.json").write_bytes(json.dumps(note).encode("utf-8", "surrogatepass"))
    return _asked(lambda: open_update(folder, Said()))


CALLS = st.recursive(
    st.one_of(st.sampled_from(["none", "sign", "ig", "x", "1", "-1", "1e999", "''", "None", "sweep(1,2)", "os"]),
              st.text("abz_(),='[].+*{}:\"\\\n0189", max_size=12)),
    lambda inner: st.builds(lambda name, args: f"{name}({', '.join(args)})", st.sampled_from(
        ["noise", "chain", "prune", "sweep", "ig", "linear", "exec", "__import__", "image", "text", "clip"]),
        st.lists(st.one_of(inner, inner.map(lambda x: f"keep={x}")), max_size=3)), max_leaves=12)
KEYS = ["name", "client", "assume", "batch", "threats", "defenses", "attacks", "metrics", "trials", "seed", "budget",
        "leak_at"]


@st.composite
def audit_files(draw: Any) -> bytes:
    """TOML that is none, or that holds calls nobody knows, deep nests, huge lists and wrong types."""
    kind = draw(st.sampled_from(["table", "table", "table", "text", "deep", "bytes"]))
    if kind == "bytes":
        return draw(st.binary(max_size=300))
    if kind == "deep":
        depth = draw(st.integers(1, 5000))
        return ("defenses = [" + draw(st.sampled_from(["[" * depth, '"' + "chain(" * depth + '"', "{a=" * depth]))
                ).encode()
    if kind == "text":
        return ("attacks = " + draw(st.text(max_size=60))).encode("utf-8", "replace")
    lines = []
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=4)):
        value = draw(st.one_of(VALUES, CALLS, st.lists(CALLS, max_size=4)))
        lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines).encode("utf-8", "replace")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value) if value is not None else '"none"'


TASK = 'task = "image(model=mlp(width=4), data=photos(size=8, count=20))"\n'


def try_audit(content: bytes, folder: Path) -> str:
    path = folder / "audit.toml"
    path.write_bytes(TASK.encode() + content)
    return _asked(lambda: read(path))


def tiny_run(folder: Path) -> Run:
    audit = Audit(name="tiny", task="image(model=mlp(width=4), data=photos(size=8, count=20))", attacks=("linear",),
                  threats=("curious",), defenses=("none", "sign"), trials=1, metrics=("psnr", "mse"))
    return drive.run(audit, folder / "whole")


FILES = ["plan.json", "environment.json", "audit.toml", "scores.json", "cell.json", "events.jsonl",
         "guess.safetensors", "done"]
ENDS = ["DELETE", "CUT", "DEEP", "HUGE"]
Edit = tuple[int, str, tuple[int, ...], Any]


@st.composite
def edits(draw: Any) -> Edit:
    """Which file of a run, and what becomes of one place in it: a path of choices, and a value or an end."""
    value = st.one_of(VALUES, WORDS.map(lambda w: w + SCRIPT), st.sampled_from(ENDS), st.integers(0, len(CHANGES) - 1))
    return (draw(st.integers(0, 1)), draw(st.sampled_from(FILES)),
            tuple(draw(st.lists(st.integers(0, 30), max_size=6))), draw(value))


def try_run(changes: list[Edit], whole: Run, folder: Path) -> str:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    shutil.copytree(whole.path, folder / "copy")
    for edit in changes:
        _edit(folder / "copy", *edit)

    def looked_at() -> None:
        run = open_run(folder / "copy")
        json.dumps(as_json(run.path))
        text = page(run, show_truth=True)
        assert SCRIPT not in text and "<script>owned" not in text and "<img src=x" not in text

    return _asked(looked_at)


def _edit(run: Path, cell: int, name: str, path: tuple[int, ...], value: Any) -> None:
    cells = sorted((run / "cells").iterdir())
    file = run / name if (run / name).exists() else cells[cell % len(cells)] / name
    if value == "DELETE" or not file.exists():
        file.unlink(missing_ok=True)
        return
    content = file.read_bytes()
    if value == "DEEP":
        file.write_bytes(b'{"a": [' * 100_000)
    elif value == "HUGE":
        file.write_bytes(content + b" " * 10_000_000)
    elif value == "CUT" or name in ("audit.toml", "done"):
        file.write_bytes(content[: (path or (0,))[0] * max(1, len(content) // 30)])
    elif name == "guess.safetensors":
        file.write_bytes(_other_tensors(content, path, value))
    else:
        by_line = name == "events.jsonl"
        try:
            table = [json.loads(line) for line in content.splitlines()] if by_line else json.loads(content)
        except (ValueError, RecursionError):  # an edit before this one
            return
        found = _replaced(table, path, value)
        lines = found if by_line and isinstance(found, list) else [found]
        file.write_bytes("\n".join(map(json.dumps, lines)).encode("utf-8", "surrogatepass"))


def _other_tensors(content: bytes, path: tuple[int, ...], value: Any) -> bytes:
    """One of a cell's guesses changed, or gone, or under another name."""
    try:
        tensors = load(content)
    except SafetensorError:
        return content
    name = sorted(tensors)[(path or (0,))[0] % len(tensors)]
    one = tensors.pop(name)
    if isinstance(value, int) and not isinstance(value, bool):
        tensors[name] = CHANGES[value % len(CHANGES)](one).contiguous()
    elif isinstance(value, str):
        tensors[value.encode("utf-8", "replace").decode()] = one
    return save(tensors)


def _replaced(table: Any, path: tuple[int, ...], value: Any) -> Any:
    if not path or not isinstance(table, dict | list) or not table:
        return value
    keys = list(table) if isinstance(table, dict) else list(range(len(table)))
    key = keys[path[0] % len(keys)]
    table[key] = _replaced(table[key], path[1:], value)
    return table


def _asked(question: Any) -> str:
    """"answered" or "refused"; a refusal is one line of bounded length."""
    try:
        question()
    except UsageError as problem:
        text = str(problem)
        assert len(text) < 20_000 and "Traceback" not in text
        return "refused"
    return "answered"


def table_of(content: dict[str, Any]) -> Audit:
    return from_table(content)
