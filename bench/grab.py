"""GRAB and what it is compared with, on sentences of CoLA, beside the paper's tables (BERT-base there, MiniLM here).

python bench/grab.py practical|benchmark|assumptions|noise|pruned|rates|models [--batch 1] [--sentences 16] [--seeds 1]
    [--seconds 60] [--attacks grab 'grab(masks=none)' ...] [--data DIR]
python bench/grab.py speed|memory [--batch 4] [--data DIR]
python bench/grab.py masks [--sentences 3] [--first 40] [--data DIR]

Practical: dropout as the model has it, embeddings frozen. Benchmark: no dropout. Every batch is attacked in every way
before the next one is drawn, so that the means so far, printed after each, are of the same sentences. --seconds stops
an attack after so many seconds of its own processor time; what it would answer then counts. The corpora are not part of
this project.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from text import CORPORA, DATA, drawn

from gradleak import registry
from gradleak.errors import Unsuited
from gradleak.metrics.match import assign
from gradleak.residual import residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import Guess, Observation, Secret
from gradleak.world.round import send
from gradleak.world.task import World

GIVEN = "curious+labels+lengths"
BOTH = ("grab", "grab(masks=none)")
BASELINES = ("lamp", "tag", "dlg")
RULE = """grab_rouge: F1 x 100 of words (1), pairs (2) and the longest common subsequence (L) by the paper's rule, each
truth taking the best of all guesses. One to one: the same with every guess used once. exact: sentences read word for
word. Seconds are of one thread's own time, a batch."""
METRICS = ("grab_rouge1", "grab_rouge2", "grab_rougeL", "rouge1", "rouge2", "rougeL", "exact_match")

Row = tuple[str, str, str, str, str]
"""Model, client's mode, defense, threat, attack."""

PAPER = {
    ("practical", 1): {"grab": "87.7 64.3 78.2", "grab(masks=none)": "76.9 49.5 67.3", "lamp": "75.9 36.4 60.1",
                       "lamp(objective=l2_l1)": "63.8 24.6 48.0", "tag": "58.4  6.4 33.4", "dlg": "29.2  2.7 20.0"},
    ("practical", 2): {"grab": "79.3 53.2 69.0"}, ("practical", 4): {"grab": "75.2 43.9 62.8"},
    ("practical", 8): {"grab": "68.5 35.4 54.8"}, ("benchmark", 1): {"grab": "86.4 67.6 78.3"},
}
RELAXED = {  # Table 5
    (1, "curious+lengths"): "88.6 65.7 78.8", (1, GIVEN): "87.7 64.3 78.2",
    (2, "curious"): "80.7 53.4 68.9", (2, "curious+lengths"): "78.8 51.9 67.4", (2, "curious+labels"): "84.9 56.8 72.3",
    (2, GIVEN): "79.3 53.2 69.0", (4, "curious"): "76.5 47.8 63.9", (4, "curious+lengths"): "67.7 36.7 55.5",
    (4, "curious+labels"): "79.2 52.8 66.9", (4, GIVEN): "75.2 43.9 62.8",
}
PRUNED = {  # Table 7, pruning and dropout masks: neither, pruning, dropout, both
    "0.25": (" 0.9  0.0  0.9", "79.7 50.3 69.1", " 0.8  0.0  0.7", "89.2 65.8 78.8"),
    "0.1": (" 0.4  0.0  0.4", "72.7 41.2 61.2", " 0.9  0.0  0.9", "89.4 67.8 80.8"),
    "0.05": (" 0.5  0.0  0.5", "76.0 45.5 65.2", " 0.9  0.0  0.9", "87.6 65.3 78.0"),
    "0.01": (" 0.3  0.0  0.3", "67.1 35.2 56.6", " 0.7  0.0  0.7", "85.9 60.2 75.4"),
}
LEVELS = ("0.001", "0.002", "0.005", "0.01", "0.02", "0.05")


def rows(what: str, given: argparse.Namespace) -> dict[Row, str]:
    """What is asked, and what the paper has for it."""
    model, batch, attacks = given.model, given.batch, tuple(given.attacks or ())
    informed = GIVEN.replace("curious", "informed")
    if what in ("practical", "benchmark"):
        mode = "train" if what == "practical" else "eval"
        known = PAPER.get((what, batch), {})
        every = attacks or (BOTH + BASELINES if what == "practical" else ("grab", "lamp"))
        return {(model, mode, "none", GIVEN, attack): known.get(attack, "") for attack in every}
    if what == "assumptions":
        threats = ("curious", "curious+lengths", "curious+labels", GIVEN)
        return {(model, "train", "none", who, attack): RELAXED.get((batch, who), "")
                for who in threats for attack in attacks or ("grab",)}
    if what == "noise":  # without and with matched norms: the cosine of a layer does not see its norm
        variants = [f"grab(masks={masks}, objective={form})"
                    for form in ("l2_l1", "cosine") for masks in ("none", "learnt")]
        return {(model, "train", f"noise(unit={level})", GIVEN, attack): ""
                for level in given.levels or LEVELS for attack in attacks or variants}
    if what == "pruned":
        return {(model, "train", f"prune(keep={keep}, by=random)", who, attack): PRUNED[keep][2 * i + j]
                for keep in given.levels or PRUNED for i, attack in enumerate(attacks or reversed(BOTH))
                for j, who in enumerate((GIVEN, informed))}
    if what == "rates":
        return {(f"python('grab:minilm{rate}')", "train", "none", GIVEN, attack): ""
                for rate in (10, 20, 30, 40) for attack in attacks or BOTH}
    return {(f"python('grab:{name}')", "train", "none", GIVEN, attack): ""
            for name in ("roberta", "bert12") for attack in attacks or BOTH}


def _minilm(rate: float, classes: int):
    from text_common import tokenizer
    from transformers import AutoModelForSequenceClassification

    words = tokenizer()
    net = AutoModelForSequenceClassification.from_pretrained(
        words.name_or_path, num_labels=classes, attn_implementation="eager", hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate)
    return net, words


def minilm10(classes: int):
    return _minilm(0.1, classes)


def minilm20(classes: int):
    return _minilm(0.2, classes)


def minilm30(classes: int):
    return _minilm(0.3, classes)


def minilm40(classes: int):
    return _minilm(0.4, classes)


def roberta(classes: int):
    """RoBERTa's architecture with random weights, 6 layers of 384 as MiniLM has; MiniLM's words."""
    from text_common import tokenizer
    from transformers import AutoModelForSequenceClassification, RobertaConfig

    words = tokenizer()
    config = RobertaConfig(vocab_size=len(words), hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                           intermediate_size=1536, num_labels=classes, pad_token_id=words.pad_token_id)
    return AutoModelForSequenceClassification.from_config(config, attn_implementation="eager"), words


def bert12(classes: int):
    """BERT of 12 layers of 384 with random weights."""
    from text_common import layers12

    return layers12(classes)


@dataclass
class Tally:
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in METRICS})
    labels: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    stopped: int = 0
    refused: str = ""

    def add(self, secret: Secret, seen: Observation, guess: Guess) -> None:
        words = seen.vocabulary
        assert words is not None
        match = assign(guess.reading, secret.readings)
        truth = [words.sentence(row) for row in secret.readings]
        read = [words.sentence(guess.reading[i]) for i in match]
        for name in METRICS:
            self.scores[name] += registry.build("metric", parse(name))(read, truth)
        hard = guess.batch.y.argmax(-1) if guess.batch.y.ndim > 1 else guess.batch.y
        self.labels += [int(hard[i]) == int(y) for i, y in zip(match, secret.labels, strict=True)]
        self.off.append(residual(seen, guess.batch).cosine)

    def line(self) -> str:
        if not self.labels:
            return f"refused: {self.refused}"
        mean = [100 * sum(values) / len(values) for values in self.scores.values()]
        three, bare, seconds = mean[:3], mean[3:6], sum(self.seconds) / len(self.seconds)
        return (f"{len(self.labels):3} {mean[6]:5.0f}% | {three[0]:5.1f} {three[1]:5.1f} {three[2]:5.1f} | "
                f"{bare[0]:5.1f} {bare[1]:5.1f} {bare[2]:5.1f} | {100 * sum(self.labels) / len(self.labels):4.0f}% | "
                f"{sum(self.off) / len(self.off):.4f} | {seconds:6.1f} {self.stopped:2} stopped")


def attacked(attack: str, seen: Observation, rng: Rng, seconds: float) -> tuple[Guess, float, bool]:
    """The answer, the time it took, and whether it was stopped."""
    began = time.process_time()
    for guess in registry.build("attack", parse(attack)).guesses(seen, rng):
        if time.process_time() - began > seconds and guess.step < guess.steps:
            return guess, time.process_time() - began, True
    return guess, time.process_time() - began, False


def observed(world: World, row: Row, count: int, trial: int, seed: int) -> tuple[Secret, Observation]:
    _, mode, defense, who, _ = row
    part, guard = registry.build("client", parse(f"one_step(mode={mode})")), registry.build("defense", parse(defense))
    client, secret = part.of(world.learner), world.draw(count, trial, part, Rng(0))
    release = send(world, part, client, guard, secret, Rng(seed) / trial).release
    return secret, threat(who).observe(release, client, guard)


def ask(what: str, given: argparse.Namespace, folder: Path) -> None:
    asked = rows(what, given)
    file = drawn(given.corpus, given.data, max(64, given.sentences), folder)
    worlds = {model: registry.build("task", parse(f"text(model={model}, data=lines({str(file)!r}))")).open(Rng(0))
              for model in dict.fromkeys(row[0] for row in asked)}
    found = {row: Tally() for row in asked}
    for seed in range(given.seeds):
        for trial in range(given.first, given.first + max(1, given.sentences // given.batch)):
            for row, tally in found.items():
                secret, seen = observed(worlds[row[0]], row, given.batch, trial, seed)
                try:
                    guess, seconds, stopped = attacked(row[4], seen, Rng(seed) / trial, given.seconds)
                except Unsuited as problem:
                    tally.refused = str(problem)
                    continue
                tally.add(secret, seen, guess)
                tally.seconds.append(seconds)
                tally.stopped += stopped
                if given.verbose:
                    texts = [seen.vocabulary.sentence(r).text for r in guess.reading] if seen.vocabulary else []
                    print(f"    {row[4]} {row[2]} {row[3]}: {texts}", file=sys.stderr, flush=True)
            print(f"\n{what}, batch {given.batch}, after {trial + 1 - given.first} batches of seed {seed}: n, exact | "
                  "grab_rouge 1 2 L | one to one 1 2 L | labels | residual | seconds")
            for row, tally in found.items():
                print(f"  {row[0][-18:]:18} {row[2]:27} {row[3]:22} {row[4]:38} {tally.line()} | "
                      f"paper {asked[row] or '-'}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks = ("practical", "benchmark", "assumptions", "noise", "pruned", "rates", "models")
    options.add_argument("what", nargs="+", choices=(*asks, "speed", "memory", "masks"))
    options.add_argument("--data", type=Path, default=DATA, help="a folder with cola, sst2 and rt in it")
    options.add_argument("--corpus", choices=list(CORPORA), default="cola")
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--sentences", type=int, default=16)
    options.add_argument("--first", type=int, default=0, help="batches to pass over")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--seconds", type=float, default=1e9)
    options.add_argument("--attacks", nargs="+", help="instead of the question's own")
    options.add_argument("--levels", nargs="+", help="of noise, or shares kept")
    options.add_argument("--model", default="minilm")
    options.add_argument("--verbose", action="store_true", help="print what was read, to the error stream")
    given = options.parse_args()
    torch.set_num_threads(1)
    print(RULE)
    with tempfile.TemporaryDirectory() as folder:
        for what in given.what:
            if what in asks:
                ask(what, given, Path(folder))
            else:
                from grab_cost import masks, memory, speed

                {"speed": speed, "memory": memory, "masks": masks}[what](given, Path(folder))


if __name__ == "__main__":
    main()
