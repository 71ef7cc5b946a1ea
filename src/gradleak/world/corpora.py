"""Where private sentences come from. Each is a description; `load` reads it."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gradleak.errors import UsageError
from gradleak.registry import kind_of, register

LARGEST_FILE = 100_000_000
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Texts:
    """Sentences with class numbers and the classes' names; sentence n is from line n + 1."""

    sentences: tuple[str, ...]
    y: Tensor
    classes: tuple[str, ...]


class Corpus(Protocol):
    """A set of labelled private sentences."""

    def load(self) -> Texts: ...


kind_of(Corpus, "corpus")


@register("corpus", "sentences")
@dataclass(frozen=True)
class Sentences:
    """120 everyday remarks in English, positive or negative, that come with the package."""

    def load(self) -> Texts:
        return _read((files("gradleak.world") / "sentences.tsv").read_bytes(), "sentences", True)


@register("corpus", "lines")
@dataclass(frozen=True)
class Lines:
    """A UTF-8 file of `label<TAB>sentence` lines; labels are words, or class numbers from 0.

    labels=false: a sentence a line and nothing else, for models that predict words.
    """

    path: str
    labels: bool = True

    def load(self) -> Texts:
        file = Path(self.path)
        if not file.is_file():
            raise UsageError(f"lines({self.path!r}): no such file; give one of label<TAB>sentence lines")
        if file.stat().st_size > LARGEST_FILE:
            raise UsageError(f"lines({self.path!r}): larger than {LARGEST_FILE // 1_000_000} MB; use a part of it")
        return _read(file.read_bytes(), f"lines({self.path!r})", self.labels)


def _read(content: bytes, where: str, labelled: bool) -> Texts:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        broken = content.count(b"\n", 0, problem.start) + 1
        raise UsageError(f"{where}, line {broken}: not UTF-8 ({problem.reason}); convert the file") from None
    labels: list[str] = []
    sentences: list[str] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        label, tab, sentence = line.partition("\t") if labelled else ("0", "\t", line)
        label, sentence = label.strip(), sentence.strip()
        parts = {"text": line.strip(), "tab": tab, "label": label, "sentence": sentence}
        missing = next((name for name, part in parts.items() if not part), None)
        if missing:
            raise UsageError(f"{where}, line {number} has no {missing}; every line is "
                             f"{'label<TAB>sentence' if labelled else 'a sentence'}")
        labels.append(label)
        sentences.append(sentence)
    return Texts(tuple(sentences), *_classes(labels, where))


def _classes(labels: list[str], where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers stand for themselves; words are numbered by the alphabet."""
    if all(label.isascii() and label.isdigit() and len(label) < 10 for label in labels):
        numbers = [int(label) for label in labels]
        if max(numbers) >= MOST_CLASSES:
            line = numbers.index(max(numbers)) + 1
            raise UsageError(f"{where}, line {line}: class number {max(numbers)}; number the classes from 0, "
                             f"at most {MOST_CLASSES}")
        return torch.tensor(numbers), tuple(map(str, range(max(numbers) + 1)))
    names = {label: number for number, label in enumerate(sorted(set(labels)))}
    return torch.tensor([names[label] for label in labels]), tuple(names)
