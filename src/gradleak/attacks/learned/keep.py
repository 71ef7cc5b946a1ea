"""Where fits are kept between trials, cells and runs: tensors by digest, nothing that is executed."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradleak.errors import UsageError
from gradleak.probe import probe
from gradleak.rng import Rng
from gradleak.types import Know, Observation, Public

State = Mapping[str, Tensor]
MOST = 8.0
"""Gigabytes of fits that are kept, unless GRADLEAK_CACHE_GB says otherwise; the oldest go first."""


def folder() -> Path:
    """GRADLEAK_CACHE, or `gradleak` in the user's cache folder."""
    own = os.environ.get("GRADLEAK_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(own) if own else base / "gradleak") / "fits"


def _most() -> float:
    said = os.environ.get("GRADLEAK_CACHE_GB", str(MOST))
    try:
        return float(said) * 1e9
    except ValueError:
        raise UsageError(f"GRADLEAK_CACHE_GB={said!r}: a number of gigabytes, as in GRADLEAK_CACHE_GB=8") from None


def digest(seen: Observation, needs: frozenset[Know], *about: object) -> str:
    """Everything a fit depends on. The client and its defense are known by what they make of made-up data."""
    found = hashlib.blake2b(repr((about, seen.shape, seen.classes)).encode(), digest_size=16)
    for piece in _pieces(seen, needs):
        found.update(piece)
    return found.hexdigest()


def _pieces(seen: Observation, needs: frozenset[Know]) -> Iterator[bytes]:
    for name, value in seen.params.items():
        yield name.encode() + as_bytes(value)
    for know in sorted(needs, key=lambda k: k.value):
        fact = seen.facts[know]
        if isinstance(fact, Public):
            yield as_bytes(fact.readings) + (b"" if fact.labels is None else as_bytes(fact.labels))
        else:
            yield as_bytes(fact) if isinstance(fact, Tensor) else repr(fact).encode()
    count = seen.facts[Know.COUNT]
    assert isinstance(count, int)
    for value in seen.rehearse(probe(seen, count, Rng(0)), Rng(0)).values():
        yield as_bytes(value)


def as_bytes(value: Tensor) -> bytes:
    """What a digest is made of."""
    return value.detach().cpu().contiguous().numpy().tobytes()


@dataclass(frozen=True)
class Place:
    """One fit's files: finished, or as far as it came. A folder that cannot be written to keeps nothing, and whatever
    cannot be read is fitted again."""

    digest: str

    @property
    def rng(self) -> Rng:
        """A stream of the fit's own: the same question is learned the same way."""
        return Rng(int(self.digest[:15], 16))

    def finished(self) -> State | None:
        return _read(folder() / f"{self.digest}.safetensors")

    def begun(self) -> State | None:
        return _read(folder() / f"{self.digest}.part")

    def keep(self, state: State) -> None:
        if _write(state, folder() / f"{self.digest}.safetensors"):
            (folder() / f"{self.digest}.part").unlink(missing_ok=True)
            _forget(folder())

    def interrupt(self, state: State) -> None:
        """Keep what is not finished, so that a kill costs little."""
        _write(state, folder() / f"{self.digest}.part")


def _read(file: Path) -> State | None:
    try:
        return {name: value.clone() for name, value in load_file(file).items()} if file.is_file() else None
    except (SafetensorError, OSError, ValueError):
        return None


def _write(state: State, file: Path) -> bool:
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.detach().contiguous() for name, value in state.items()}, part)
        part.replace(file)
    except (OSError, SafetensorError):
        with suppress(OSError):
            part.unlink()
        return False
    return True


def _forget(place: Path) -> None:
    files = sorted((f for f in place.iterdir() if f.is_file()), key=lambda f: f.stat().st_mtime, reverse=True)
    total, most = 0, _most()
    for number, file in enumerate(files):
        total += file.stat().st_size
        if number and total > most:
            file.unlink(missing_ok=True)
