"""The run directory: everything on disk, every file whole or absent, so that a killed run goes on."""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradleak.audit.plan import Audit, Cell
from gradleak.audit.records import audited, believed, told
from gradleak.errors import UsageError


def _part(path: Path) -> Path:
    """Where a file is written before it takes its name; a process of its own has one of its own."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def write_json(path: Path, value: object) -> None:
    write_whole(path, json.dumps(value, indent=1, sort_keys=True).encode())


def write_whole(path: Path, content: bytes) -> None:
    """The file is there with all its content, or not at all."""
    part = _part(path)
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(f"{path}: {str(problem)[:200]}; is this a gradleak run directory?") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    part = _part(path)
    save_file({name: value.detach().contiguous().clone() for name, value in tensors.items()}, part)
    part.replace(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path) if path.exists() else {}
    except (SafetensorError, ValueError, OSError, RuntimeError) as problem:
        raise UsageError(f"{path}: not a safetensors file ({str(problem)[:200]}); run the audit again in another "
                         "--out") from None


@dataclass(frozen=True)
class CellDir:
    """One cell's folder. `done` is written last."""

    path: Path

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    def open(self, cell: Cell) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "cell.json").exists():
            write_json(self.path / "cell.json", asdict(cell))

    def trials(self) -> list[dict[str, Any]]:
        """The records of the trials that are finished."""
        path = self.path / "scores.json"
        return believed(read_json(path), path) if path.exists() else []

    def check(self, cell: Cell) -> None:
        """Refuse what was measured for another cell."""
        path = self.path / "cell.json"
        if path.exists() and read_json(path) != json.loads(json.dumps(asdict(cell))):
            raise UsageError(f"{path}: another cell than its folder's name says: the run directory was edited; run the "
                             "audit again in another --out")

    def add_trial(self, record: dict[str, Any], guess: Mapping[str, Tensor]) -> None:
        """Guess first, record second: what counts as finished is the record."""
        trial = record["trial"]
        kept = read_tensors(self.path / "guess.safetensors")
        write_tensors(self.path / "guess.safetensors", {**kept, **{f"{trial}.{k}": v for k, v in guess.items()}})
        self.rewrite([*(t for t in self.trials() if t["trial"] < trial), record])
        (self.path / "state.safetensors").unlink(missing_ok=True)

    def rewrite(self, trials: list[dict[str, Any]]) -> None:
        write_json(self.path / "scores.json", {"trials": trials})

    def guess(self, trial: int) -> dict[str, Tensor]:
        kept = read_tensors(self.path / "guess.safetensors")
        return {k.split(".", 1)[1]: v for k, v in kept.items() if k.startswith(f"{trial}.")}

    def save_state(self, trial: int, seconds: float, tensors: Mapping[str, Tensor]) -> None:
        extra = {"_trial": torch.tensor(trial), "_seconds": torch.tensor(seconds, dtype=torch.float64)}
        write_tensors(self.path / "state.safetensors", {**tensors, **extra})

    def load_state(self, trial: int) -> tuple[dict[str, Tensor], float]:
        """The checkpoint of that trial, with the seconds spent, if there is one."""
        state = read_tensors(self.path / "state.safetensors")
        if not state or int(state.pop("_trial")) != trial:
            return {}, 0.0
        return state, float(state.pop("_seconds"))

    def log(self, event: dict[str, Any]) -> None:
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """Every whole line; after a kill a step may stand twice, the later one counts."""
        path = self.path / "events.jsonl"
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if told(event):
                found[event["trial"], event["step"]] = event
        return [found[key] for key in sorted(found)]

    def finish(self) -> None:
        write_whole(self.path / "done", b"")


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path

    def begin(self, audit: Audit) -> None:
        """Create, or go on: another plan in the same place is refused."""
        plan = self.path / "plan.json"
        if plan.exists():
            self._refuse_change(read_json(plan)["audit"], json.loads(json.dumps(asdict(audit))))
        else:
            self._refuse_strangers()
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(plan, {"audit": asdict(audit), "cells": [{"key": c.key, **asdict(c)} for c in audit.cells()]})
        if not (self.path / "audit.toml").exists():
            write_json(self.path / "environment.json", environment())
            write_whole(self.path / "audit.toml", to_toml(audit).encode())

    def _refuse_strangers(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path}: is a file; choose a folder with --out")
        if self.path.exists() and any(not child.name.endswith(".part") for child in self.path.iterdir()):
            raise UsageError(f"{self.path}: exists and is not a gradleak run; choose another --out")

    def _refuse_change(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        changed = [f"{k}: {old.get(k)!r} -> {new[k]!r}" for k in new if old.get(k) != new[k]]
        if changed:
            raise UsageError(f"{self.path} holds another plan ({'; '.join(changed)}); choose another --out, "
                             "or restore the old values to go on")

    def audit(self) -> Audit:
        path = self.path / "plan.json"
        table = read_json(path)
        return audited(table.get("audit") if isinstance(table, dict) else None, path)

    def cells(self) -> Iterator[tuple[Cell, CellDir]]:
        for cell in self.audit().cells():
            yield cell, CellDir(self.path / "cells" / cell.key)


def open_run(path: Path) -> Run:
    if not (path / "plan.json").is_file():
        raise UsageError(f"{path}: not a gradleak run directory (no plan.json); give the folder `gradleak run` wrote")
    return Run(path)


def to_toml(audit: Audit) -> str:
    """The audit as a file one can run again."""
    lines = ["# gradleak run AUDIT.toml"]
    for key, value in asdict(audit).items():
        if isinstance(value, dict):
            value = "{" + ", ".join(f"{k} = {v}" for k, v in value.items()) + "}"
        elif value is None:
            continue
        else:
            value = json.dumps(value)
        lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"


def environment() -> dict[str, str]:
    from importlib.metadata import distributions

    wanted = ("gradleak", "torch", "numpy", "scipy", "scikit-image", "transformers", "rouge-score", "symspellpy")
    there = {d.name.lower().replace("_", "-"): d.version for d in distributions() if d.name}
    return {"python": platform.python_version(), "machine": platform.machine(),
            **{name: there[name] for name in wanted if name in there}}
