"""What `subspace` reads exactly, and how fast: a row for each corpus, client, defense and batch size.

python bench/subspace.py [--data DIR] [--corpora cola sst2 rt] [--batch 1 2 4 8] [--sentences 64] [--modes eval train]
    [--defenses none sign] [--head 0] [--first 0] [--past 0] [--seconds 600] [--model minilm] [--limit 16]
    [--growth FILE.png] [--client 'local_steps(steps=4, rate=5e-5, mode={mode})']

How each batch went, and the means so far (exact, ROUGE-1/2/L), is said on the error stream.

--model "python('subspace:gpt2')" (PYTHONPATH=bench) is GPT-2's architecture with random weights and MiniLM's words.

The attacker knows the batch size and nothing else: no labels, no lengths. exact: sentences read word for word; certain:
tokens the attack calls proven to have stood in their place; false: those of them that no sentence of the batch has
there; tests: vectors that were tested against the span. Seconds are of one thread, of the process alone. ROUGE: F1 x
100, without [CLS] and [SEP]. The corpora are not part of this project.

--growth measures instead how seconds grow with the number of tokens in a batch (the rank of its gradients) and with the
size of the vocabulary, and draws it.
"""

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from text import CORPORA, DATA, drawn

from gradleak import registry
from gradleak.attacks.exact.entrance import Entrance, entrance
from gradleak.attacks.exact.members import members
from gradleak.errors import Unsuited
from gradleak.metrics.match import assign
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import NOTHING, Batch, Guess, Observation, Secret, Vocabulary
from gradleak.world.round import send
from gradleak.world.task import World

ONE_STEP = "one_step(mode={mode})"
METRICS = ("exact_match", "rouge1", "rouge2", "rougeL", "token_accuracy")


@dataclass
class Tally:
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in METRICS})
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)
    certain: int = 0
    false: int = 0
    tests: float = 0
    stopped: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def add(self, secret: Secret, guess: Guess, words: Vocabulary) -> None:
        """One batch. Sentences the attack did not give are empty ones."""
        width = max(guess.reading.shape[1], secret.readings.shape[1])
        reading, truth = (_wide(rows, width, len(secret.readings)) for rows in (guess.reading, secret.readings))
        match = assign(reading, truth)
        read, real = ([words.sentence(row) for row in rows] for rows in (reading[match], truth))
        for name in METRICS:
            self.scores[name] += registry.build("metric", parse(name))(read, real)
        self.labels += [i < len(guess.batch.y) and int(guess.batch.y[i]) == int(label)
                        for i, label in zip(match, secret.labels, strict=True)]
        if guess.certain is not None:
            proven = _wide(guess.certain.long(), width, len(truth), 0).bool()
            there = (reading[:, None] == truth[None]).any(1)
            self.certain += int(proven.sum())
            self.false += int((proven & ~there).sum())
        self.tests += guess.notes.get("tests", guess.notes.get("refused", 0.0))

    def so_far(self) -> str:
        mean = {name: 100 * sum(values) / len(values) for name, values in self.scores.items()}
        return f"{mean['exact_match']:6.1f} | {mean['rouge1']:5.1f} {mean['rouge2']:5.1f} {mean['rougeL']:5.1f}"


def _wide(rows: torch.Tensor, width: int, count: int, filler: int = NOTHING) -> torch.Tensor:
    out = torch.full((max(count, len(rows)), width), filler)
    out[: len(rows), : rows.shape[1]] = rows
    return out


def observed(world: World, who: str, defense: str, count: int, trial: int, head: int) -> tuple[Secret, Observation]:
    part, guard = registry.build("client", parse(who)), registry.build("defense", parse(defense))
    client, secret = part.of(world.learner), world.draw(count, trial, part, Rng(head))
    release = send(world, part, client, guard, secret, Rng(head) / trial).release
    return secret, threat("curious").observe(release, client, guard)


def measured(
    world: World, who: str, defense: str, count: int, batches: range, head: int, limit: float,
) -> Tally:
    found, attack = Tally(), registry.build("attack", parse("subspace"))
    for trial in batches:
        secret, seen = observed(world, who, defense, count, trial, head)
        found.tokens.append(int((secret.readings != NOTHING).sum()))
        began = time.process_time()
        try:
            for guess in attack.guesses(seen, Rng(trial)):  # noqa: B007 - the last one is the answer
                if time.process_time() - began > limit:
                    break
        except Unsuited as problem:
            found.refused[str(problem)] = found.refused.get(str(problem), 0) + 1
            empty = torch.full((count, 1), NOTHING)
            guess = Guess(Batch(torch.zeros(count, 1, 1), torch.full((count,), NOTHING)), empty, step=1)
        found.seconds.append(time.process_time() - began)
        found.stopped += guess.step < guess.steps
        assert seen.vocabulary is not None
        found.add(secret, guess, seen.vocabulary)
        right = found.scores["exact_match"][-count:]
        stopped = " (stopped)" * (guess.step < guess.steps)
        print(f"batch {trial + 1} of {batches.stop}: {sum(right):.0f} of {count} word for word, {found.tokens[-1]} "
              f"tokens, {found.seconds[-1]:.1f} s{stopped}; so far {found.so_far()}", file=sys.stderr, flush=True)
    return found


def gpt2(classes: int):
    """GPT-2's architecture with random weights, 6 layers of 384 as MiniLM has; MiniLM's words."""
    from text_common import tokenizer
    from transformers import GPT2Config, GPT2ForSequenceClassification

    words = tokenizer()
    config = GPT2Config(vocab_size=len(words), n_embd=384, n_layer=6, n_head=12, n_positions=128, num_labels=classes,
                        pad_token_id=words.pad_token_id, bos_token_id=words.cls_token_id,
                        eos_token_id=words.sep_token_id, attn_implementation="eager")
    return GPT2ForSequenceClassification(config), words


def line(corpus: str, mode: str, defense: str, count: int, found: Tally) -> str:
    tokens, seconds = found.tokens, sorted(found.seconds)
    labels = 100 * sum(found.labels) / len(found.labels)
    return (f"{corpus:5} {mode:5} {defense:26} {count:3} {len(found.labels):4} {min(tokens):4}-{max(tokens):<4} "
            f"{found.so_far()} | {labels:6.1f} | {found.certain:6} {found.false:5} {found.tests:9.0f} | "
            f"{seconds[len(seconds) // 2]:6.1f} {seconds[-1]:6.1f}")


def growth(world: World, head: int, file: Path) -> None:
    """Seconds of a whole reading, and of testing the vocabulary alone, by tokens; the latter also by vocabulary, cut or
    drawn out with random rows."""
    attack = registry.build("attack", parse("subspace"))
    whole: list[tuple[int, float]] = []
    tested: list[tuple[int, float]] = []
    for count in (1, 2, 4, 8, 16):
        _, seen = observed(world, ONE_STEP.format(mode="eval"), "none", count, 0, head)
        tested.append(vocabulary_tested(entrance(seen)))
        began = time.process_time()
        list(attack.guesses(seen, Rng(0)))
        whole.append((tested[-1][0], time.process_time() - began))
        print(f"{count} sentences, {tested[-1][0]} tokens: {whole[-1][1]:.2f} s, of it {tested[-1][1]:.2f} s for "
              "testing the vocabulary", flush=True)
    _, seen = observed(world, ONE_STEP.format(mode="eval"), "none", 4, 0, head)
    sizes: list[tuple[int, float]] = []
    words = seen.vocabulary
    assert words is not None
    for times in (0.125, 0.25, 0.5, 1, 2, 4):
        rows = round(times * len(words.table))
        more = torch.randn(max(0, rows - len(words.table)), words.table.shape[1]).mul(words.table.std())
        table = torch.cat([words.table.detach()[:rows], more])
        usable = torch.cat([words.usable[:rows], torch.ones(len(more), dtype=torch.bool)])
        _, seconds = vocabulary_tested(
            replace(entrance(seen), vocabulary=replace(words, table=table, usable=usable)))
        sizes.append((rows, seconds))
        print(f"vocabulary of {rows}: {seconds:.2f} s", flush=True)
    draw({"tokens in the batch (rank)": {"the whole reading": whole, "testing the vocabulary": tested},
          "words in the vocabulary": {"testing the vocabulary, 4 sentences": sizes}}, file)


def vocabulary_tested(door: Entrance) -> tuple[int, float]:
    """The rank of the first layers' gradients, and the seconds to find out which tokens are inside."""
    rank, began = door.span.rank, time.process_time()
    members(door)
    return rank, time.process_time() - began


def draw(panels: dict[str, dict[str, list[tuple[int, float]]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(9, 3.2), layout="constrained")
    for one, (across, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            one.loglog(*zip(*points, strict=True), "o-", label=name)
        one.set(xlabel=across, ylabel="seconds of one core")
        one.legend(fontsize=8)
        one.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


HEAD = (f"{'data':5} {'mode':5} {'defense':26} {'B':>3} {'n':>4} {'tokens':9} {'exact':>6} | {'R-1':>5} {'R-2':>5} "
        f"{'R-L':>5} | {'labels':>6} | {'certain':>6} {'false':>5} {'tests':>9} | seconds a batch: median, most")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=DATA, help="a folder with cola, sst2 and rt in it")
    options.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=["cola"])
    options.add_argument("--batch", nargs="+", type=int, default=[1, 2, 4, 8])
    options.add_argument("--modes", nargs="+", choices=["eval", "train"], default=["eval", "train"])
    options.add_argument("--defenses", nargs="+", default=["none"])
    options.add_argument("--sentences", type=int, default=64, help="a row, drawn into batches")
    options.add_argument("--first", type=int, default=0, help="pass over so many: sentences that were looked at")
    options.add_argument("--past", type=int, default=0, help="pass over so many batches of each row: measured before")
    options.add_argument("--seconds", type=float, default=math.inf, help="stop searching a batch then, after its turn")
    options.add_argument("--head", type=int, default=0, help="seed of the fresh head and of the draws")
    options.add_argument("--model", default="minilm")
    options.add_argument("--limit", type=int, help="cut sentences to so many tokens")
    options.add_argument("--client", default=ONE_STEP, help="what takes part; {mode} is that of --modes")
    options.add_argument("--growth", type=Path, help="measure growth instead, and draw it there")
    given = options.parse_args()
    torch.set_num_threads(1)
    if not given.growth:
        print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for corpus in given.corpora:
            file = drawn(corpus, given.data, given.first + max(given.sentences, *given.batch), Path(folder))
            file.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[given.first :]), "utf-8")
            limit = f", limit={given.limit}" if given.limit else ""
            task = registry.build("task", parse(f"text(model={given.model}, data=lines({str(file)!r}){limit})"))
            world = task.open(Rng(given.head))
            if given.growth:
                growth(world, given.head, given.growth)
                continue
            for mode in given.modes:
                for defense in given.defenses:
                    for count in given.batch:
                        found = measured(world, given.client.format(mode=mode), defense, count,
                                         range(given.past, max(1, given.sentences // count)), given.head,
                                         given.seconds)
                        print(line(corpus, mode, defense, count, found), flush=True)
                        if found.stopped:
                            print(f"      {found.stopped} of {len(found.seconds)} searches stopped after "
                                  f"{given.seconds:.0f} s, with what they had", flush=True)
                        for reason, times in found.refused.items():
                            print(f"      {times} refused: {reason}", flush=True)


if __name__ == "__main__":
    main()
