"""What defenses buy and what they cost: leakage under the standard suite, the model trained under each, epsilon.

python bench/economics.py suite               standard-v1 beside each of its attacks alone, sample by sample
python bench/economics.py quick               how long the quick profile takes on two cores
python bench/economics.py opacus              DP-SGD beside Opacus: epsilon, and its own training loop, three seeds
python bench/economics.py rounds              several noisy updates of the same photograph, matched together
python bench/economics.py dlg  --cifar FILE   DLG's defense table on CIFAR-10: MSE, accuracy drop, epsilon
python bench/economics.py cola|sst2 --data DIR [--rounds 1000] [--words 40] [--sentences N] [--rate 1e-4]
    MiniLM's MCC under noise and pruning as in LAMP and DP-SGD as in GRAB, beside what the suite reads

The same command with the same --out goes on where it stopped. Reports with the frontier are written to --out.
"""

import argparse
import copy
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from common import CIFAR, measured
from rich.console import Console
from text import CORPORA

from gradleak import registry
from gradleak.audit import utility
from gradleak.audit.drive import run
from gradleak.audit.plan import Audit
from gradleak.audit.store import Run
from gradleak.audit.training import part_of, split, train
from gradleak.audit.utility import federated
from gradleak.audit.verdict import Row
from gradleak.defenses.dpsgd import DpSgd
from gradleak.report.html import write
from gradleak.report.rows import rows
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.world.data import Images

LENET = "image(model=lenet, data=photos(size=32))"
MINILM = "text(model=minilm, data=sentences)"
NOISY = "noise(relative=1)"
PAPER = """LAMP on BERT-base: MCC 0.557 without a defense, 0.551, 0.464, 0.364 with noise 0.001, 0.005, 0.01, 0.534 with
90 % zeroed at random. GRAB's Table 6:
MCC 0.74, 0.60, 0.51, 0.25 and epsilon 1.1e10, 4.4e8, 1.1e8, 2.4e6 at noise 0.001,
0.005, 0.01, 0.05."""


def text_audit(corpus: str, given: argparse.Namespace, folder: Path) -> Audit:
    rounds = given.rounds
    examples = [(label, sentence) for label, sentence in CORPORA[corpus](given.data)
                if 3 <= len(sentence.split()) <= given.words]
    examples = [examples[n] for n in (Rng(0) / corpus).permutation(len(examples))[:given.sentences].tolist()]
    file = folder / f"{corpus}.tsv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{label}\t{sentence}\n" for label, sentence in examples), "utf-8")
    clients, batch = 2, 8
    rate = round(clients * batch / (0.7 * len(examples)), 5)
    private = tuple(f"dpsgd(clip=1.0, multiplier={m}, steps={rounds}, rate={rate}, accountant=rdp)"
                    for m in given.multipliers)
    return Audit(
        name=corpus, task=f"text(model=minilm, data=lines({str(file)!r}))", client="one_step(mode=eval)", batch=(1,),
        threats=tuple(given.threats), trials=given.trials, budget=given.budget, attacks=("standard-v1(quick)",),
        defenses=("none", *(f"noise(sigma={s})" for s in given.sigmas),
                  *(f"prune(keep={k}, by=random)" for k in given.keeps), *private),
        metrics=("exact_match", "rouge1", "rouge2", "rougeL"),
        utility=f"federated(rounds={rounds}, clients={clients}, batch={batch}, rate={given.rate}, every={rounds // 2})")


def dlg_audit(cifar: Path, rounds: int) -> Audit:
    """DLG's own setting: one image an update, its sigmoid network. The same network is trained under each defense."""
    clients, batch, count = 4, 32, 10000
    rate = round(batch / (0.7 * count / clients), 5)
    return Audit(
        name="dlg-defenses", task=f"image(model=lenet, data=npz({str(cifar)!r}, x=x_test, y=y_test))", batch=(1,),
        threats=("curious", "informed"), trials=3, budget="20 min", attacks=("standard-v1(quick)",),
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


def alone(task: str, client: str, batch: int, suite: str, trials: int) -> None:
    """A suite beside each of its attacks alone, sample by sample."""
    members = registry.build("suite", parse(suite)).members("text(" in task)
    audit = Audit(task=task, client=client, threats=("informed",), batch=(batch,), trials=trials, budget="2 h",
                  attacks=(suite, *(m.attack for m in members)))
    together, *each = measured(audit, 1)
    lead = "rougeL" if "text(" in task else "psnr"
    print(f"{task}, batch {batch}, {suite}: read {together.leaked} of {together.samples}, "
          f"mean {lead} {together.scores[lead].mean:.2f}, {together.seconds / trials:.1f} s a trial")
    for single in each:
        if lead not in single.scores:
            print(f"  {single.cell.attack}: no answer ({single.reasons[0][:90]})")
            continue
        pairs = [pair for mine, ours in zip(single.trials, together.trials, strict=True)
                 for pair in zip(mine["leaked"], ours["leaked"], strict=False)]
        behind = sum(one and not both for one, both in pairs)
        print(f"  {single.cell.attack}: read {single.leaked}, mean {single.scores[lead].mean:.2f}; samples it reads "
              f"and the suite does not: {behind}")


def quick(task: str, client: str) -> None:
    """The quick profile as a gate would run it: with and without a defense, both attackers, four updates each."""
    audit = Audit(task=task, client=client, attacks=("standard-v1(quick)",), trials=4, defenses=("none", "sign"),
                  budget="3 min")
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    judged = measured(audit, 2)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"quick, {task}, {len(judged)} rows of {audit.trials} updates: {wall:.0f} s with two workers, {spent:.0f} s "
          "of processor time; "
          + ", ".join(f"{r.cell.defense} {r.cell.threat} {r.verdict} {r.leaked}/{r.samples}" for r in judged))


def opacus_loop(images: Images, private: DpSgd, rounds: int, batch: int, rate: float, seed: int) -> float:
    """Opacus's own engine on the same network, data, noise, clipping and optimiser; accuracy on the same test part."""
    from opacus import PrivacyEngine

    world = registry.build("task", parse(DIGITS)).open(Rng(0) / "task")
    parts = split(federated(TRAINING.format(rounds=rounds, batch=batch, rate=rate)), world.pool, Rng(seed) / "utility")
    model = copy.deepcopy(world.learner.modes["train"]).requires_grad_(True)
    inside = torch.cat([*parts.shards])
    data = torch.utils.data.TensorDataset(images.x[inside], images.y[inside])
    loader = torch.utils.data.DataLoader(data, batch_size=batch, generator=torch.Generator().manual_seed(seed))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    engine = PrivacyEngine()
    torch.manual_seed(seed)
    model, optimiser, loader = engine.make_private(module=model, optimizer=optimiser, data_loader=loader,
                                                   noise_multiplier=private.noise, max_grad_norm=private.clip)
    done = 0
    while done < rounds:
        for x, y in loader:
            if done == rounds:
                break
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
            done += 1
    with torch.no_grad():
        said = model(images.x[parts.tested]).argmax(1)
    return float((said == images.y[parts.tested]).float().mean())


def rounds_together(trials: int = 3) -> None:
    """Noise is drawn anew each round, the photograph is the same: what matching all rounds at once is worth."""
    for times in (1, 8):
        audit = Audit(task=LENET, client=f"rounds(one_step, times={times}, rate=0.0001)", defenses=(NOISY,),
                      trials=trials, attacks=("ig(steps=400, restarts=1)",), threats=("informed",),
                      metrics=("psnr",), budget="2 h")
        (row,) = measured(audit, 1)
        print(f"{times} rounds under {NOISY}: mean {row.scores['psnr'].mean:.1f} dB, {row.verdict}, "
              f"{row.leaked} of {row.samples} read")


DIGITS = "image(model=mlp(width=64), data=digits)"
TRAINING = "federated(rounds={rounds}, clients=1, batch={batch}, rate={rate}, every={rounds})"


def beside_opacus(rounds: int = 200, batch: int = 64, rate: float = 0.005) -> None:
    """Epsilon against Opacus called directly, and accuracy against its own training loop."""
    from opacus.accountants import create_accountant

    for accountant in ("rdp", "prv"):
        gaps = []
        for multiplier in (0.6, 1.0, 2.0):
            for share, steps in ((0.01, 1000), (0.1, 200), (1.0, 1)):
                spec = f"dpsgd(clip=1, multiplier={multiplier}, steps={steps}, rate={share}, accountant={accountant})"
                ours = registry.build("defense", parse(spec)).privacy.epsilon
                direct = create_accountant(mechanism=accountant)
                direct.history = [(multiplier, share, steps)]
                gaps.append(abs(ours / direct.get_epsilon(delta=1e-5) - 1))
        print(f"epsilon by {accountant}: at most {max(gaps):.1e} relative from Opacus over {len(gaps)} settings")
    images = registry.build("data", parse("digits")).load()
    share = round(batch / (0.7 * len(images.x)), 4)
    spec = f"dpsgd(clip=1.0, epsilon=8, steps={rounds}, rate={share}, accountant=rdp)"
    private = registry.build("defense", parse(spec))
    audit = Audit(task=DIGITS, defenses=("none", spec), utility=TRAINING.format(rounds=rounds, batch=batch, rate=rate))
    for seed in range(3):
        theirs = opacus_loop(images, private, rounds, batch, rate, seed)
        found = []
        for job, cell in utility.jobs(audit):
            course = replace(job, seed=seed).course(cell)
            state = train(course, course.begin(), lambda state: None)
            table = course.confusion({**state, **{f"best.{k}": v for k, v in part_of(state, "now").items()}})
            found.append(float(table.diagonal().sum() / table.sum()))
        print(f"seed {seed}: accuracy without privacy {found[0]:.3f}; epsilon {private.privacy.epsilon:.2f}, "
              f"multiplier {private.noise:.3f}: ours {found[1]:.3f}, Opacus's loop {theirs:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["suite", "quick", "opacus", "dlg", "cola", "sst2", "rounds"])
    parser.add_argument("--data", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--cifar", type=Path, default=CIFAR)
    parser.add_argument("--rounds", type=int, default=160)
    parser.add_argument("--words", type=int, default=40, help="sentences of at most so many")
    parser.add_argument("--sentences", type=int, default=10**6, help="at most so many of them: a CPU's share")
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.001, 0.003, 0.01])
    parser.add_argument("--keeps", type=float, nargs="+", default=[0.1, 0.01], help="shares that pruning keeps")
    parser.add_argument("--multipliers", type=float, nargs="+", default=[0.003, 0.01, 0.03, 0.3], help="of DP-SGD")
    parser.add_argument("--threats", nargs="+", default=["curious", "informed"])
    parser.add_argument("--rate", type=float, default=0.0002, help="of the server's Adam, for cola and sst2")
    parser.add_argument("--budget", default="8 min", help="a row, for cola and sst2")
    parser.add_argument("--profile", choices=["quick", "full"], default="quick")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    began = time.monotonic()
    if given.what == "suite":
        for task, client in ((LENET, "one_step"), (MINILM, "one_step(mode=eval)")):
            for batch in (1, 2):
                alone(task, client, batch, f"standard-v1({given.profile})", given.trials)
    elif given.what == "quick":
        quick(LENET, "one_step")
        quick(MINILM, "one_step(mode=eval)")
    elif given.what == "rounds":
        rounds_together()
    elif given.what == "opacus":
        beside_opacus()
    elif given.what in CORPORA:
        folder = out.with_name(f"{out.name}-data")
        audited(text_audit(given.what, given, folder), out, "rougeL")
        print(PAPER)
    else:
        audited(dlg_audit(given.cifar, given.rounds), out, "mse")
    console = Console(stderr=True)
    console.print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
