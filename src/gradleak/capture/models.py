"""The model an update belongs to, built again and given the weights the client was sent."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gradleak import registry
from gradleak.capture import format as files
from gradleak.errors import UsageError
from gradleak.rng import Rng
from gradleak.spec import Call, parse
from gradleak.types import Batch, Vocabulary
from gradleak.world.image import check_output
from gradleak.world.language import Language
from gradleak.world.learner import Learner


@dataclass(frozen=True)
class Known:
    """A model as every party knows it. Only what was sent counts as trained."""

    learner: Learner
    module: nn.Module
    vocabulary: Vocabulary | None
    unsent: tuple[str, ...]

    @property
    def others(self) -> dict[str, Tensor]:
        """What a file of its weights may hold beside those that were trained."""
        prefix, own = self.learner.prefix, self.learner.params
        whole = {name.removeprefix(prefix): value for name, value in self.module.state_dict().items()}
        return {name: value for name, value in whole.items() if name not in own}


def known(
    model: str, task: str | None, shape: tuple[int, ...], classes: int, before: Path | None,
    sent: Collection[str], seed: int,
) -> Known:
    """Build, load the weights, freeze what was not sent."""
    described = parse(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((Rng(seed) / "task" / "model").number)
        if of_text(described, task):
            return _reader(registry.build("language", described).open(classes), before, sent)
        module = registry.build("model", described).build(shape, classes)
    check_output(module, model, shape, classes)
    unsent = _prepared(module, "", before, sent)
    return Known(Learner(module, shape, classes), module, None, unsent)


def of_text(described: Call, task: str | None) -> bool:
    """Some names, such as `python`, stand for models of both kinds: then the capture must say which."""
    if described.name in registry.names("model"):
        return task == "text" and described.name in registry.names("language")
    return described.name in registry.names("language")


def _reader(language: Language, before: Path | None, sent: Collection[str]) -> Known:
    module, words = language.module, language.vocabulary
    unsent = _prepared(module, language.prefix, before, sent)
    module.settle()
    trained = any(p.requires_grad for p in module.words.parameters())
    tokens = words.usable.nonzero().flatten()[:4].reshape(2, -1)
    extra = {"mask": torch.ones_like(tokens)} | ({"ids": tokens} if trained else {})
    causal = language.classes == len(words.table)
    y = torch.zeros_like(tokens) if causal else torch.zeros(2, dtype=torch.long)
    rows = slice(0, 1) if words.pad is None else slice(0, 2)
    example = Batch(words.table[tokens][rows], y[rows], {k: v[rows] for k, v in extra.items()})
    learner = Learner(module, (language.limit, words.table.shape[1]), language.classes, example, language.prefix)
    return Known(learner, module, words, unsent)


def _prepared(module: nn.Module, prefix: str, before: Path | None, sent: Collection[str]) -> tuple[str, ...]:
    """Weights put in, parameters that are not in the update frozen; the names of those that could have been."""
    own = {name.removeprefix(prefix): p for name, p in module.named_parameters()}
    if before is not None:
        _fill(module, prefix, before, own)
    if not set(sent) & set(own):
        raise UsageError(f"the update's parameter names do not fit the model (missing: {', '.join(sorted(own)[:3])}; "
                         f"unknown: {', '.join(map(files.cut, sorted(sent)[:3]))}); check --model, or rename them")
    unsent = tuple(name for name, p in own.items() if p.requires_grad and name not in sent)
    for name, p in own.items():
        p.requires_grad_(name in sent)
    return unsent


def _fill(module: nn.Module, prefix: str, before: Path, own: dict[str, nn.Parameter]) -> None:
    there: dict[str, Tensor] = {name.removeprefix(prefix): value for name, value in module.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in there.items()}
    found = set()
    with torch.no_grad():
        for name, value in files.tensors(before, shapes):
            if name not in there:
                raise UsageError(f"{before}: the model has no {files.cut(name)}; check --model, or rename it")
            if there[name].is_floating_point() and not files.usable(value):
                raise UsageError(f"{before}: {name} holds NaN, infinite or non-float values; no client starts there")
            there[name].copy_(value)
            found.add(name)
    shared = {value.data_ptr() for name, value in there.items() if name in found}
    missing = [name for name in own if name not in found and own[name].data_ptr() not in shared]
    if missing:
        raise UsageError(f"{before}: parameter names do not fit the model (missing: {', '.join(missing[:3])}); check "
                         "--model, or rename them")
