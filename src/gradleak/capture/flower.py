"""Flower: record what the server saw, in a strategy, or what a client sent, in a mod. Needs flwr's message API."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from gradleak.audit.store import write_tensors
from gradleak.capture.format import Note, Training, write
from gradleak.capture.watch import Watch
from gradleak.errors import UsageError

Strategy = TypeVar("Strategy")
Task = Literal["image", "text"]


def recording(
    strategy: Strategy, into: str | Path, *, model: str | None = None, task: Task | None = None,
    shape: tuple[int, ...] | None = None, classes: int | None = None, defense: str | None = None,
    training: Training | None = None, examples: str = "num-examples",
) -> Strategy:
    """The same strategy, which from now on writes every client's update to `into`/round-N/client-ID.

    A server sees weights go out and come back; `training` is what it told its clients to do with them. `examples` is
    the metric in which clients say how many they trained on. How to build the model again, and what defense clients
    use, may be said here or when the capture is attacked.
    """
    place, told = Path(into).absolute(), training or Training()
    note = Note("difference", None, model, task, shape, classes, defense, told, "flower strategy")
    out, back = _method(strategy, "configure_train"), _method(strategy, "aggregate_train")
    asked: dict[int, tuple[dict[str, Tensor], dict[int, dict[str, Any]]]] = {}

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        messages = list(out(server_round, arrays, config, grid))
        before = {k: v.clone() for k, v in arrays.to_torch_state_dict().items()}
        asked[server_round] = before, {m.metadata.dst_node_id: _config(m.content) for m in messages}
        return messages

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        kept = list(replies)
        before, configs = asked.pop(server_round)
        folder = place / f"round-{server_round}"
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / "before.safetensors", before)
        for reply in kept:
            if reply.has_content():
                who = reply.metadata.src_node_id
                _write(folder / f"client-{who}", note, before, reply.content, examples, server_round, str(who),
                       configs.get(who, {}), shared=True)
        return back(server_round, kept)

    # On the instance: any strategy will do, and its own `start` calls these.
    vars(strategy).update(configure_train=configure_train, aggregate_train=aggregate_train)
    return strategy


def _method(strategy: object, name: str) -> Callable[..., Any]:
    found = getattr(strategy, name, None)
    if not callable(found):
        raise UsageError(f"{type(strategy).__name__} has no {name}: record strategies of flwr.serverapp.strategy "
                         "(pip install 'gradleak[flower]'), or capture in the client with record_mod")
    return found  # type: ignore[no-any-return]


def record_mod(
    into: str | Path, *, model: str | None = None, task: Task | None = None, shape: tuple[int, ...] | None = None,
    classes: int | None = None, defense: str | None = None, examples: str = "num-examples",
) -> Callable[[Any, Any, Callable[[Any, Any], Any]], Any]:
    """A mod for a ClientApp: writes what each training message got and sent, with the optimiser and loss it used."""
    place = Path(into).absolute()

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        before = _arrays(message.content)
        with Watch() as watch:
            reply = call_next(message, context)
        if before and reply.has_content():
            config = _config(message.content)
            turn = int(config.get("server-round", 0))
            note = Note("difference", None, model, task, shape, classes, defense, watch.training(), "flower mod")
            _write(place / f"round-{turn}" / f"client-{context.node_id}", note, before, reply.content, examples, turn,
                   str(context.node_id), config, shared=False)
        return reply

    return mod


def _arrays(content: Any) -> dict[str, Tensor]:
    """The first record of arrays, by name; cloned, since Flower's may not be written to."""
    for record in content.array_records.values():
        return {name: value.clone() for name, value in record.to_torch_state_dict().items()}
    return {}


def _config(content: Any) -> dict[str, Any]:
    return {key: value for record in content.config_records.values() for key, value in record.items()
            if isinstance(value, str | int | float | bool)}


def _write(
    folder: Path, note: Note, before: Mapping[str, Tensor], content: Any, examples: str, turn: int, who: str,
    config: Mapping[str, Any], shared: bool,
) -> None:
    after = _arrays(content)
    metrics = {k: v for record in content.metric_records.values() for k, v in record.items()}
    count = metrics.get(examples)
    moved = {name: v - after[name] for name, v in before.items() if name in after and _moved(v, after[name])}
    if not moved:
        return
    write(folder, replace(note, count=int(count) if isinstance(count, int | float) else None, round=turn, client=who,
                          config=dict(config)), moved, None if shared else before)


def _moved(before: Tensor, after: Tensor) -> bool:
    """Weights that did not move were not trained: nothing was sent of them."""
    return before.is_floating_point() and before.shape == after.shape and not torch.equal(before, after)
