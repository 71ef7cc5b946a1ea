"""Hugging Face: a callback for Trainer, which records one client's round from train() to its end."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gradleak.capture.format import Note, write
from gradleak.capture.reading import ADAM
from gradleak.capture.watch import Watch, sent, snapshot
from gradleak.hub import library


def trainer_callback(
    into: str | Path, *, model: str | None = None, task: Literal["image", "text"] = "text", classes: int | None = None,
    count: int | None = None, defense: str | None = None,
) -> Any:
    """Records what this `trainer.train()` changed, with its optimiser, loss, precision and steps; once a callback."""
    transformers = library("transformers", "the Trainer callback needs")
    recorder = f"transformers {transformers.__version__}"
    note = Note("difference", count, model, task, None, classes, defense, recorder=recorder)
    base: Any = transformers.TrainerCallback

    class Recorder(base):  # type: ignore[misc]
        """Begins when training begins, writes when it ends."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.model = others["model"]
            self.before, self.watch = snapshot(self.model), Watch(self.model).__enter__()

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self.watch.__exit__(None, None, None)
            moved, kind = sent(self.model, self.before)
            training = self.watch.training()
            clipped = args.max_grad_norm and (training.optimiser or {}).get("name") not in ADAM
            done = f"clip(norm={float(args.max_grad_norm)})" if clipped else None
            write(Path(into), replace(note, sent=kind, count=count or sum(training.counts) or None, training=training,
                                      defense=defense or done), moved, self.before)

    return Recorder()
