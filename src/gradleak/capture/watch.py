"""Plain PyTorch: `with capture.update(model, into=DIR): ...` around what a client does in a round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from gradleak.capture.format import Note, Training, write
from gradleak.errors import UsageError

LOSSES = {F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div,
          F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.multi_margin_loss, F.cosine_embedding_loss}
TOLD = ("lr", "momentum", "dampening", "nesterov", "weight_decay", "betas", "eps", "amsgrad", "maximize")
WRAPPERS = {"GradSampleModule": "_module", "DistributedDataParallel": "module", "DataParallel": "module"}


def bare(model: nn.Module) -> nn.Module:
    """The model itself, out of what Opacus and data-parallel training put around it."""
    while (inside := WRAPPERS.get(type(model).__name__)) is not None:
        model = getattr(model, inside)
    return model


class _Losses(TorchFunctionMode):
    """Notices which loss is computed; changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] | None = None
        self.kinds: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in LOSSES and torch.is_grad_enabled():
            self.kinds.add(func.__name__)
            if self.first is None:
                given = {k: v for k, v in (kwargs or {}).items() if k in ("label_smoothing", "reduction")}
                weighed = (kwargs or {}).get("weight") is not None
                self.first = {"name": func.__name__, **given, **({"weight": True} if weighed else {})}
        return func(*args, **(kwargs or {}))


class Watch:
    """What can be seen of a training from beside it; without a model, of whatever is trained meanwhile.

    Evaluation (no gradients) does not count.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = None if model is None else bare(model)
        self.losses = _Losses()
        self.steps, self.counts, self.modes = 0, list[int](), set[str]()
        self.optimiser: dict[str, Any] | None = None
        self.precision: str | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Watch":
        if self.model is not None:
            self._stack.callback(self.model.register_forward_pre_hook(self._forward, with_kwargs=True).remove)
        self._stack.callback(register_optimizer_step_pre_hook(self._step).remove)
        self._stack.enter_context(self.losses)
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def _forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim), None)
        if first is None or not torch.is_grad_enabled():
            return
        self.counts.append(len(first))
        self.modes.add("train" if module.training else "eval")
        mixed = torch.is_autocast_enabled(first.device.type)
        kind = torch.get_autocast_dtype(first.device.type) if mixed else next(module.parameters()).dtype
        self.precision = str(kind).removeprefix("torch.")

    def _step(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        mine = None if self.model is None else {id(p) for p in self.model.parameters()}
        if mine and not any(id(p) in mine for group in optimiser.param_groups for p in group["params"]):
            return
        self.steps += 1
        if self.optimiser is None:
            group = optimiser.param_groups[0]
            told = {k: list(group[k]) if isinstance(group[k], tuple) else _plain(group[k]) for k in TOLD if k in group}
            self.optimiser = {"name": type(optimiser).__name__, "fresh": not optimiser.state,
                              "groups": len(optimiser.param_groups), **told}

    def training(self) -> Training:
        mode: Any = next(iter(self.modes)) if len(self.modes) == 1 else None
        loss = self.losses.first
        if len(self.losses.kinds) > 1:
            loss = {"name": " + ".join(sorted(self.losses.kinds))}
        return Training(self.steps, mode, self.optimiser, loss, self.precision, tuple(self.counts))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name, as they are now. Names that share one tensor are kept once."""
    found: dict[str, Tensor] = {}
    there: set[int] = set()
    for name, value in bare(model).state_dict(keep_vars=True).items():
        if id(value) not in there:
            there.add(id(value))
            found[name] = value.detach().cpu().clone()
    return found


def sent(model: nn.Module, before: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Literal["gradient", "difference"]]:
    """What a client sends after training: by how much its trained weights moved or, if none did, their gradients."""
    trained = {name: p for name, p in bare(model).named_parameters() if p.requires_grad}
    moved = {name: before[name] - p.detach().cpu() for name, p in trained.items() if name in before}
    if any(bool(value.any()) for value in moved.values()):
        return moved, "difference"
    grads = {name: p.grad.detach().cpu().clone() for name, p in trained.items() if p.grad is not None}
    if not grads:
        raise UsageError("nothing to capture: no weight changed and none has a gradient; put the training step, or "
                         "loss.backward() alone, inside `with capture.update(...)`")
    return grads, "gradient"


@contextmanager
def update(
    model: nn.Module, into: str | Path, *, count: int | None = None, spec: str | None = None,
    task: Literal["image", "text"] | None = None, shape: Sequence[int] | None = None, classes: int | None = None,
    defense: str | None = None, optimiser: Optimizer | None = None,
) -> Iterator[Watch]:
    """Record what the training inside sends: weights before, update, and how it came about.

    `spec` says how gradleak builds the model again, as in an audit: "python('mine:build')", "hf('folder')"; it may be
    given later. `defense` is what is done to the update, as far as gradleak cannot see; give it Opacus' `optimiser`
    and it sees that. Leave the block by an exception, and nothing is written.
    """
    before = snapshot(model)
    with Watch(model) as watch:
        yield watch
    moved, kind = sent(model, before)
    note = Note(
        kind, count if count is not None else sum(watch.counts) or None, spec, task, tuple(shape) if shape else None,
        classes, defense or _private(optimiser), watch.training(), f"torch {torch.__version__}")
    if kind == "gradient":
        note = replace(note, training=replace(note.training, steps=len(watch.counts)))
    write(Path(into), note, moved, before)


def _private(optimiser: Optimizer | None) -> str | None:
    """Opacus' optimiser, in gradleak's words."""
    clip, noise = (getattr(optimiser, name, None) for name in ("max_grad_norm", "noise_multiplier"))
    return f"dpsgd(clip={float(clip)}, multiplier={float(noise)})" if clip is not None and noise is not None else None
