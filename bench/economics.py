"""What defenses buy and what they cost: leakage under the standard suite, the model trained under each, epsilon.

python bench/economics.py suite               standard-v1 beside each of its attacks alone; how long `quick` takes
python bench/economics.py opacus              DP-SGD beside Opacus: epsilon, and its own training loop, three seeds
python bench/economics.py dlg  --cifar FILE   DLG's defense table on CIFAR-10: MSE, accuracy drop, epsilon
python bench/economics.py cola --data DIR     MCC on CoLA (MiniLM) under noise and pruning as in LAMP, DP-SGD as in GRAB

The same command with the same --out goes on where it stopped. Reports with the frontier are written to --out.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import CIFAR
from rich.console import Console
from text import cola

from gradleak.audit import utility
from gradleak.audit.drive import run
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run
from gradleak.audit.verdict import Row
from gradleak.report.html import write
from gradleak.report.rows import rows

SIGMAS = (0.001, 0.005, 0.01)
KEEPS = (0.1, 0.01)
MULTIPLIERS = (0.01, 0.1, 0.3)
PAPER = """LAMP on BERT-base: MCC 0.557 without a defense, 0.551, 0.464, 0.364 with noise 0.001, 0.005, 0.01, 0.534 with
90 % zeroed at random. GRAB's Table 6:
MCC 0.74, 0.60, 0.51, 0.25 and epsilon 1.1e10, 4.4e8, 1.1e8, 2.4e6 at noise 0.001,
0.005, 0.01, 0.05."""


def cola_audit(data: Path, folder: Path, rounds: int) -> Audit:
    examples = cola(data)
    file = folder / "cola.tsv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{label}\t{sentence}\n" for label, sentence in examples), "utf-8")
    clients, batch = 2, 16
    rate = round(clients * batch / (0.7 * len(examples)), 5)
    private = tuple(f"dpsgd(clip=1.0, multiplier={m}, steps={rounds}, rate={rate}, accountant=rdp)"
                    for m in MULTIPLIERS)
    return Audit(
        name="cola", task=f"text(model=minilm, data=lines({str(file)!r}))", client="one_step(mode=eval)", batch=(1,),
        threats=("curious", "informed"), trials=4, budget="8 min", attacks=("standard-v1(quick)",),
        defenses=("none", *(f"noise(sigma={s})" for s in SIGMAS), *(f"prune(keep={k}, by=random)" for k in KEEPS),
                  *private),
        metrics=("exact_match", "rouge1", "rouge2", "rougeL"),
        utility=f"federated(rounds={rounds}, clients={clients}, batch={batch}, rate=0.0001, every=50)")


def dlg_audit(cifar: Path, rounds: int) -> Audit:
    """DLG's own setting: one image an update, its sigmoid network. The same network is trained under each defense."""
    clients, batch, count = 4, 32, 10000
    rate = round(batch / (0.7 * count / clients), 5)
    return Audit(
        name="dlg-defenses", task=f"image(model=lenet, data=npz({str(cifar)!r}, x=x_test, y=y_test))", batch=(1,),
        threats=("curious", "informed"), trials=8, budget="20 min", attacks=("standard-v1(quick)",),
        defenses=("none", "noise(sigma=0.01)", "prune(keep=0.1)", "quantise(bits=4)",
                  f"dpsgd(clip=1.0, epsilon=8, steps={rounds}, rate={rate})"),
        metrics=("psnr", "mse", "ssim", "label_accuracy"),
        utility=f"federated(rounds={rounds}, clients={clients}, batch={batch}, every=50)")


def table(judged: Sequence[Row], done: Run, lead: str) -> None:
    costs = utility.results(done)
    print(f"{'defense':62} {'attacker':9} {'verdict':13} {lead:>9} {'read':>6} {'accuracy':>9} {'F1':>6} {'MCC':>6} "
          f"{'[95 %]':>14} {'epsilon':>9}")
    for r in judged:
        cost = costs.get((r.cell.task, r.cell.defense))
        said = (f"{cost.accuracy.mean:9.3f} {cost.f1.mean:6.3f} {cost.mcc.mean:6.3f} "
                f"{f'[{cost.mcc.low:.3f}, {cost.mcc.high:.3f}]':>14}" if cost else " " * 38)
        score = f"{r.scores[lead].mean:9.4f}" if lead in r.scores else f"{'-':>9}"
        read = f"{r.leaked}/{r.samples}"
        print(f"{r.cell.defense:62} {r.cell.threat:9} {r.verdict:13} {score} {read:>6} {said} "
              f"{'inf' if r.epsilon is None else f'{r.epsilon:.3g}':>9}")


def audited(audit: Audit, out: Path, lead: str) -> None:
    done = run(audit, out, 1, Console(stderr=True))
    table(rows(done), done, lead)
    print(f"report: {write(done)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cola", "dlg"])
    parser.add_argument("--data", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--cifar", type=Path, default=CIFAR)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    began = time.monotonic()
    if given.what == "cola":
        audited(cola_audit(given.data, out.with_name(f"{out.name}-data"), given.rounds), out, "rougeL")
    else:
        audited(dlg_audit(given.cifar, given.rounds), out, "mse")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
