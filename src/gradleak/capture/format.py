"""The file format of captured updates, version 1: safetensors for tensors, JSON for the rest, nothing that executes.

    DIR/capture.json          what was sent and how it came about, see `Note`
    DIR/update.safetensors    one tensor a trained parameter: a gradient, or the weights before minus those after
    DIR/before.safetensors    weights and buffers the client was sent; may stand in DIR's parent, for a whole round
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.audit.store import write_json, write_tensors
from gradleak.errors import UsageError, did_you_mean

FORMAT, VERSION = "gradleak-capture", 1
LARGEST_NOTE = 1_000_000
MOST_TENSORS = 100_000

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Training:
    """What was seen of the client's training; None where nothing was."""

    steps: int | None = None
    mode: Literal["train", "eval"] | None = None
    optimiser: Mapping[str, Any] | None = None
    """Its class as `name`, `lr`, and what else its first group sets; `fresh` if it held no state before."""
    loss: Mapping[str, Any] | None = None
    """The loss as `name`, with `label_smoothing`, `reduction`, `weight` where they were given."""
    precision: str | None = None
    """The number type of the forward pass."""
    counts: tuple[int, ...] = ()
    """Examples of each forward pass."""


@dataclass(frozen=True)
class Note:
    """capture.json without its first two keys, `format` and `version`."""

    sent: Literal["gradient", "difference"]
    count: int | None = None
    model: str | None = None
    task: Literal["image", "text"] | None = None
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    defense: str | None = None
    training: Training = field(default_factory=Training)
    recorder: str = ""
    round: int | None = None
    client: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Captured:
    """One update, as read."""

    path: Path
    note: Note
    before: Path
    update: Path


def write(into: Path, note: Note, update: Mapping[str, Tensor], before: Mapping[str, Tensor] | None) -> Path:
    """A capture is there when capture.json is. Without `before` the parent folder is expected to hold it."""
    into.mkdir(parents=True, exist_ok=True)
    if (into / "capture.json").exists():
        raise UsageError(f"{into}: holds a captured update already; name another folder")
    if before is not None:
        write_tensors(into / "before.safetensors", before)
    write_tensors(into / "update.safetensors", update)
    write_json(into / "capture.json", {"format": FORMAT, "version": VERSION, **asdict(note)})
    return into


def read(path: Path) -> Captured:
    """A captured update, its note checked; tensors are looked at when they are needed."""
    file = path / "capture.json"
    if not file.is_file():
        raise UsageError(f"{path}: no captured update (no capture.json); make one with gradleak.capture, or give "
                         "--update a .safetensors file")
    if file.stat().st_size > LARGEST_NOTE:
        raise UsageError(f"{file}: larger than {LARGEST_NOTE} bytes: not a capture")
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(f"{file}: not JSON ({cut(str(problem))}); capture again") from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise UsageError(f"{file}: \"format\" is not {FORMAT!r}; capture with gradleak.capture")
    if table.get("version") != VERSION:
        raise UsageError(f"{file}: version {cut(repr(table.get('version')))}; this gradleak reads version {VERSION}")
    note = _note({k: v for k, v in table.items() if k not in ("format", "version")}, file)
    places = [folder / "before.safetensors" for folder in (path, path.absolute().parent)]
    before = next((place for place in places if place.is_file()), None)
    if before is None:
        raise UsageError(f"{path}: before.safetensors is missing, here and in the folder above; capture again")
    return Captured(path, note, before, path / "update.safetensors")


def find(path: Path) -> list[Captured]:
    """Every capture in a folder, at any depth, in the order of names."""
    if (path / "capture.json").is_file():
        return [read(path)]
    found = [read(file.parent) for file in sorted(path.rglob("capture.json"))] if path.is_dir() else []
    if not found:
        raise UsageError(f"{path}: no captured updates in it; make them with gradleak.capture")
    return found


def cut(text: str, most: int = 80) -> str:
    """A stranger's text for one line of an error."""
    return repr(text)[1:-1][:most] + ("..." if len(text) > most else "")


_KINDS: dict[str, tuple[type, ...]] = {
    "count": (int,), "model": (str,), "defense": (str,), "recorder": (str,), "round": (int,),
    "client": (str,), "config": (dict,), "steps": (int,), "optimiser": (dict,), "loss": (dict,), "precision": (str,),
}
_WORDS = {"sent": ("gradient", "difference"), "task": ("image", "text"), "mode": ("train", "eval")}
_LISTS = ("shape", "counts")


def _note(table: dict[str, Any], file: Path) -> Note:
    training = table.pop("training", {})
    if not isinstance(training, dict):
        raise UsageError(f"{file}: training must be a table; capture again")
    known = {k: _checked(k, v, file) for k, v in table.items() if _known(k, Note, file)}
    seen = {k: _checked(k, v, file) for k, v in training.items() if _known(k, Training, file)}
    if known.get("sent") is None:
        raise UsageError(f"{file}: sent must be \"gradient\" or \"difference\"; capture again")
    for key in ("recorder", "config"):
        if known.get(key, "") is None:
            del known[key]
    return Note(**known, training=Training(**seen))


def _known(key: str, kind: type, file: Path) -> bool:
    fields = list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    if key not in fields:
        raise UsageError(f"{file}: unknown key '{cut(key)}': {did_you_mean(key[:80], fields)}")
    return True


def _checked(key: str, value: Any, file: Path) -> Any:
    if value is None and key not in _LISTS[1:]:
        return None
    if key in _WORDS and value in _WORDS[key]:
        return value
    if key == "classes" and _whole(value) and 2 <= value <= MOST_TENSORS:
        return value
    if key in _LISTS and isinstance(value, list) and len(value) <= MOST_TENSORS and all(map(_whole, value)):
        return tuple(value)
    kinds = _KINDS.get(key, ())
    if isinstance(value, kinds) and not isinstance(value, bool) and (kinds != (int,) or _whole(value)):
        return value
    raise UsageError(f"{file}: {key} = {cut(repr(value))} makes no sense there; see docs/capture.md")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**9


def tensors(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a stranger's file one by one; with `shapes`, nothing is read that does not fit them."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; save it with safetensors.torch.save_file")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) > MOST_TENSORS:
                raise UsageError(f"{path}: {len(names)} tensors; at most {MOST_TENSORS} are read")
            for name in names:
                shape = tuple(file.get_slice(name).get_shape())
                if shapes is not None and name in shapes and shape != shapes[name]:
                    raise UsageError(f"{path}: {cut(name)} has shape {shape}, not {shapes[name]}; check --model, "
                                     "--shape and --classes")
                yield name, file.get_tensor(name)
    except (SafetensorError, ValueError, OSError, OverflowError, RuntimeError, KeyError) as problem:
        raise UsageError(f"{path}: not a safetensors file ({cut(str(problem))}); save with "
                         "safetensors.torch.save_file") from None


def names(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes alone."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; save it with safetensors.torch.save_file")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError, OverflowError, RuntimeError, KeyError) as problem:
        raise UsageError(f"{path}: not a safetensors file ({cut(str(problem))}); save with "
                         "safetensors.torch.save_file") from None


def usable(value: Tensor) -> bool:
    """Whether every entry is a number one can match to."""
    return value.dtype in FLOATS and bool(value.isfinite().all())
