"""Audits of text beside the tables of the LAMP paper (BERT-base there, MiniLM here unless --model says otherwise).

python bench/text.py table1|table2|table4|table5|table8|fedavg|dropout ... [--sentences 16] [--out DIR]
    [--attacks lamp 'tag(steps=500)'] [--corpora cola] [--workers 2] [--steps N] [--data DIR]

The same command with the same --out goes on where it stopped. The corpora are not part of this project.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from gradleak.audit.drive import run
from gradleak.audit.plan import Audit, Cell
from gradleak.audit.verdict import Row
from gradleak.report.rows import rows
from gradleak.rng import Rng
from gradleak.spec import Call, parse

DATA = Path(__file__).parent.parent / "data"
SEED = 101
CURIOUS, INFORMED = "curious+labels+lengths", "informed+labels+lengths"
L2_L1 = "lamp(objective=l2_l1)"
ALL = ("lamp", L2_L1, "tag", "dlg")
ROUGE = ("1", "2", "L")
METRICS = ("exact_match", *(f"rouge{n}" for n in ROUGE), *(f"lamp_rouge{n}" for n in ROUGE))
RULE = f"""Sentences are drawn with seed {SEED}; labels and lengths are given; guesses go to truths one to one.
exact: share of sentences read word for word. ROUGE: F1 x 100 of words (1), pairs of neighbours (2) and the longest
common subsequence (L), mean over sentences, as the rouge-score package counts without its stemmer. Framed is LAMP's
own rule, by which [CLS] and [SEP] are words too: compare it with the paper's figures. Bare is without them.
Paper: BERT-base, 100 sentences, GPT-2 as the language model; here lamp has an n-gram unless a prior is named."""

Line = tuple[str, str]
Examples = list[Line]


def cola(data: Path) -> Examples:
    lines = (data / "cola" / "in_domain_train.tsv").read_text("utf-8").split("\n")
    table = (line.split("\t") for line in lines if line)
    return [(row[1], row[3]) for row in table]


def sst2(data: Path) -> Examples:
    table = (line.split("\t") for line in (data / "sst2" / "train.tsv").read_text("utf-8").split("\n")[1:] if line)
    return [(row[1].strip(), row[0]) for row in table]


def rt(data: Path) -> Examples:
    files = (("1", "rt-polarity.pos"), ("0", "rt-polarity.neg"))
    return [(label, line) for label, name in files
            for line in (data / "rt" / name).read_text("latin-1").split("\n") if line.strip()]


CORPORA: dict[str, Callable[[Path], Examples]] = {"cola": cola, "sst2": sst2, "rt": rt}

Three = tuple[float, float, float]
PAPER: dict[str, dict[tuple[object, ...], Three]] = {
    "table1": {
        ("cola", "dlg"): (59.3, 7.7, 46.2), ("cola", "tag"): (78.9, 10.2, 53.3), ("cola", "lamp"): (89.6, 51.9, 76.2),
        ("cola", L2_L1): (87.5, 47.5, 73.2), ("sst2", "dlg"): (65.4, 17.7, 54.2), ("sst2", "tag"): (75.6, 18.9, 57.4),
        ("sst2", "lamp"): (88.8, 56.9, 77.7), ("sst2", L2_L1): (88.6, 57.4, 75.7), ("rt", "dlg"): (38.6, 1.4, 26.0),
        ("rt", "tag"): (60.3, 3.5, 33.6), ("rt", "lamp"): (64.7, 16.3, 43.1), ("rt", L2_L1): (51.4, 10.2, 34.3),
    },
    "table2": {
        ("cola", 1, "dlg"): (59.3, 7.7, 46.2), ("cola", 1, "tag"): (78.9, 10.2, 53.3),
        ("cola", 1, "lamp"): (89.6, 51.9, 76.2), ("cola", 1, L2_L1): (87.5, 47.5, 73.2),
        ("cola", 2, "dlg"): (49.7, 5.7, 41.0), ("cola", 2, "tag"): (68.8, 7.6, 49.0),
        ("cola", 2, "lamp"): (74.4, 29.5, 61.9), ("cola", 2, L2_L1): (78.0, 31.4, 63.7),
        ("cola", 4, "dlg"): (37.6, 1.7, 34.0), ("cola", 4, "tag"): (56.2, 6.7, 44.0),
        ("cola", 4, "lamp"): (55.2, 14.5, 48.0), ("cola", 4, L2_L1): (66.2, 21.8, 55.2),
        ("sst2", 1, "dlg"): (65.4, 17.7, 54.2), ("sst2", 1, "tag"): (75.6, 18.9, 57.4),
        ("sst2", 1, "lamp"): (88.8, 56.9, 77.7), ("sst2", 1, L2_L1): (88.6, 57.4, 75.7),
        ("sst2", 2, "dlg"): (57.7, 11.7, 48.2), ("sst2", 2, "tag"): (71.8, 16.1, 54.4),
        ("sst2", 2, "lamp"): (72.2, 37.0, 63.6), ("sst2", 2, L2_L1): (82.5, 45.8, 70.8),
        ("sst2", 4, "dlg"): (43.1, 6.8, 39.4), ("sst2", 4, "tag"): (61.0, 12.3, 48.4),
        ("sst2", 4, "lamp"): (57.9, 23.4, 52.3), ("sst2", 4, L2_L1): (69.5, 32.5, 59.9),
        ("rt", 1, "dlg"): (38.6, 1.4, 26.0), ("rt", 1, "tag"): (60.3, 3.5, 33.6),
        ("rt", 1, "lamp"): (64.7, 16.3, 43.1), ("rt", 1, L2_L1): (51.4, 10.2, 34.3),
        ("rt", 2, "dlg"): (29.2, 1.1, 23.0), ("rt", 2, "tag"): (47.4, 2.7, 29.5),
        ("rt", 2, "lamp"): (37.4, 5.6, 29.0), ("rt", 2, L2_L1): (46.3, 7.6, 32.7),
        ("rt", 4, "dlg"): (21.2, 0.5, 18.6), ("rt", 4, "tag"): (32.3, 1.4, 23.5),
        ("rt", 4, "lamp"): (25.7, 1.8, 22.1), ("rt", 4, L2_L1): (35.1, 4.2, 27.2),
    },
    "table4": {
        ("cola", "lamp"): (89.6, 51.9, 76.2), ("cola", "lamp(published=true)"): (89.6, 51.9, 76.2),
        ("cola", L2_L1): (87.5, 47.5, 73.2), ("cola", "lamp(objective=l2)"): (69.4, 30.1, 58.8),
        ("cola", "lamp(lm=0)"): (86.7, 26.6, 66.9), ("cola", "lamp(norm=0)"): (84.5, 38.0, 69.1),
        ("cola", "lamp(moves=end)"): (87.4, 28.6, 66.9), ("cola", "lamp(moves=none)"): (86.6, 29.6, 67.4),
    },
    "table5": {
        (0.001, "dlg"): (60.0, 7.2, 46.3), (0.001, "tag"): (70.7, 6.0, 50.8), (0.001, "lamp"): (81.2, 42.7, 69.4),
        (0.001, L2_L1): (79.2, 32.8, 64.1), (0.002, "dlg"): (61.3, 7.5, 47.0), (0.002, "tag"): (67.1, 8.4, 49.9),
        (0.002, "lamp"): (70.6, 29.5, 60.9), (0.002, L2_L1): (74.3, 31.0, 61.9), (0.005, "dlg"): (58.8, 8.0, 46.4),
        (0.005, "tag"): (64.1, 6.5, 47.6), (0.005, "lamp"): (43.3, 9.45, 39.7), (0.005, L2_L1): (73.5, 29.7, 60.9),
        (0.01, "dlg"): (56.4, 6.3, 44.8), (0.01, "tag"): (59.6, 6.5, 46.2), (0.01, "lamp"): (27.7, 2.0, 27.6),
        (0.01, L2_L1): (69.6, 29.4, 60.6),
    },
    "table8": {(0.25, "lamp"): (79.4, 34.5, 66.3), (0.1, "lamp"): (61.9, 20.1, 53.9), (0.05, "lamp"): (39.0, 5.8, 37.4),
               (0.01, "lamp"): (24.7, 0.0, 24.7)},
    "fedavg": {(L2_L1,): (66.5, 21.0, 55.1)},
}
"""ROUGE-1, -2, -L of the paper on BERT-base, by its tables' numbers; the FedAvg figure is in its section 5."""


@dataclass(frozen=True)
class Question:
    """One of the paper's tables as audits: a corpus and a batch size each."""

    key: Callable[[str, int, Call, str], tuple[object, ...]]
    """Where the paper's figure is, from corpus, batch size, defense and attack."""
    attacks: tuple[str, ...]
    corpora: tuple[str, ...] = ("cola",)
    batch: tuple[int, ...] = (1,)
    defenses: tuple[str, ...] = ("none",)
    threats: tuple[str, ...] = (CURIOUS,)
    client: str = "one_step(mode=eval)"


def _scale(corpus: str, batch: int, defense: Call, attack: str) -> tuple[object, ...]:
    """The defense's number: sigma of noise, the share a pruning keeps."""
    return defense.kwargs[0][1], attack


BOTH = (CURIOUS, INFORMED)
QUESTIONS = {
    "table1": Question(lambda corpus, batch, defense, attack: (corpus, attack), ALL, tuple(CORPORA)),
    "table2": Question(lambda corpus, batch, defense, attack: (corpus, batch, attack), ALL, batch=(1, 2, 4)),
    "table4": Question(lambda corpus, batch, defense, attack: (corpus, attack), (
        "lamp", L2_L1, "lamp(objective=l2)", "lamp(lm=0)", "lamp(norm=0)", "lamp(moves=end)", "lamp(moves=none)",
        "lamp(published=true)")),
    "table5": Question(_scale, ("lamp", L2_L1), threats=BOTH,
                       defenses=tuple(f"noise(sigma={sigma})" for sigma in (0.001, 0.002, 0.005, 0.01))),
    "table8": Question(_scale, ("lamp",), threats=BOTH,
                       defenses=tuple(f"prune(keep={keep}, by=random)" for keep in (0.25, 0.1, 0.05, 0.01))),
    "fedavg": Question(lambda corpus, batch, defense, attack: (attack,), ("lamp", L2_L1), batch=(4,),
                       client="local_steps(steps=4, rate=5e-5, mode=eval)"),
    "dropout": Question(lambda corpus, batch, defense, attack: (), ("lamp",), client="one_step(mode=train)"),
}


def drawn(corpus: str, data: Path, count: int, folder: Path, part: tuple[int, int] = (1, 1)) -> Path:
    """`count` sentences as a file of label<TAB>sentence lines; more only until both labels are among them."""
    examples = CORPORA[corpus](data)
    chosen: Examples = []
    for place in (Rng(SEED) / corpus).permutation(len(examples)).tolist():
        if len(chosen) >= count and len({label for label, _ in chosen}) > 1:
            break
        label, sentence = examples[place]
        if sentence.strip():
            chosen.append((label, " ".join(sentence.split())))
    folder.mkdir(parents=True, exist_ok=True)
    number, parts = part
    chosen = chosen[number - 1 :: parts]
    file = folder / f"{corpus}-{count}-{number}-of-{parts}.tsv"
    file.write_text("".join(f"{label}\t{sentence}\n" for label, sentence in chosen), encoding="utf-8")
    return file.resolve()


def stepped(attack: str, steps: int | None) -> str:
    call = parse(attack)
    if steps is None:
        return repr(call)
    return repr(replace(call, kwargs=(*((k, v) for k, v in call.kwargs if k != "steps"), ("steps", steps))))


def without_steps(attack: str) -> str:
    call = parse(attack)
    return repr(replace(call, kwargs=tuple((k, v) for k, v in call.kwargs if k not in ("steps", "prior"))))


def audits(what: str, given: argparse.Namespace, out: Path) -> Iterator[tuple[str, str, Audit]]:
    """The corpus, a folder and the audit, for each corpus and batch size of a question."""
    question = QUESTIONS[what]
    attacks = tuple(stepped(attack, given.steps) for attack in given.attacks or question.attacks)
    for corpus in given.corpora or question.corpora:
        part, parts = map(int, given.part.split("/"))
        file = drawn(corpus, given.data, given.sentences, out / "data", (part, parts))
        for batch in question.batch:
            yield corpus, f"{what}-{corpus}-{batch}", Audit(
                name=what, task=f"text(model={given.model}, data=lines({str(file)!r}))", client=question.client,
                batch=(batch,), threats=tuple(given.threats or question.threats),
                defenses=question.defenses, attacks=attacks, metrics=METRICS, budget=given.budget,
                trials=max(1, given.sentences // parts // batch))


def paper(what: str, corpus: str, cell: Cell) -> Three | None:
    key = QUESTIONS[what].key(corpus, cell.batch, parse(cell.defense), without_steps(cell.attack))
    return PAPER.get(what, {}).get(key)


def figures(values: Three | None) -> str:
    return "    -     -     -" if values is None else " ".join(f"{value:5.1f}" for value in values)


def line(what: str, corpus: str, row: Row) -> str:
    def three(prefix: str) -> Three | None:
        found = [row.scores[prefix + n].mean * 100 for n in ROUGE if prefix + n in row.scores]
        return (found[0], found[1], found[2]) if len(found) == 3 else None

    cell, exact = row.cell, row.scores.get("exact_match")
    said = "    -" if exact is None else f"{exact.mean:5.0%}"
    who = cell.threat.partition("+")[0]
    return (f"{corpus:5} {cell.batch:2} {cell.defense:28} {who:8} {cell.attack:34} {row.samples:3} {said} "
            f"| {figures(three('lamp_rouge'))} | {figures(paper(what, corpus, cell))} | {figures(three('rouge'))} "
            f"| {row.seconds / max(1, row.samples):7.1f} {row.verdict}")


HEAD = (f"{'data':5} {'B':>2} {'defense':28} {'threat':8} {'attack':34} {'n':>3} exact | {'framed 1, 2, L':17} "
        f"| {'paper 1, 2, L':17} | {'bare 1, 2, L':17} | s/sentence, verdict")


def ask(what: str, given: argparse.Namespace, out: Path) -> None:
    question = QUESTIONS[what]
    print(f"\n{what}: {given.model}, client {question.client}\n{HEAD}", flush=True)
    for corpus, name, audit in audits(what, given, out):
        for row in rows(run(audit, out / name, given.workers, Console(stderr=True))):
            print(line(what, corpus, row), flush=True)
            for reason in row.reasons[:3]:
                print(f"      {reason}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", nargs="+", choices=list(QUESTIONS))
    options.add_argument("--data", type=Path, default=DATA, help="a folder with cola, sst2 and rt in it")
    options.add_argument("--sentences", type=int, default=16)
    options.add_argument("--part", default="1/1", help="1/2 and 2/2: halves of the sentences, to be run side by side")
    options.add_argument("--attacks", nargs="+", help="instead of the table's own")
    options.add_argument("--corpora", nargs="+", choices=list(CORPORA), help="instead of the table's own")
    options.add_argument("--threats", nargs="+", help="instead of the table's own, such as informed+labels+lengths")
    options.add_argument("--model", default="minilm")
    options.add_argument("--steps", type=int, help="of every attack, instead of its own")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--budget", default="48 h", help="for a row")
    options.add_argument("--out", type=Path, help="where the runs stay, to go on with later")
    given = options.parse_args()
    if not given.data.is_dir() or not any((given.data / corpus).is_dir() for corpus in CORPORA):
        options.error(f"{given.data}: no cola, sst2 or rt in it; name the folder that holds them with --data")
    print(RULE)
    with tempfile.TemporaryDirectory() as folder:
        for what in given.what:
            ask(what, given, given.out or Path(folder))


if __name__ == "__main__":
    main()
