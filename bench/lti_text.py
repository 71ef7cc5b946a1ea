"""LTI, LTI-P and how they learn on text: the next word, three causal layers, frozen embeddings (LTI's Table 2).

`--data DIR` holds WikiText-2's valid.txt (public) and test.txt (private); `split` writes both as one passage a line to
data/wikitext2, for lti_table2.toml. Without it, prints token accuracy and ROUGE under each defense at the scale given.
"""

import argparse
import tempfile
from pathlib import Path

from common import measured

from gradleak.audit.plan import Audit

DEFENSES = ("none", "sign", "prune(keep=0.01)", "noise(sigma=0.01)")
WORDS = 24
"""Of a passage: cut to so many tokens as the task says."""


def split(source: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for name in ("valid", "test"):
        text = (source / f"{name}.txt").read_text(encoding="utf-8")
        words = [word for line in text.splitlines() if not line.lstrip().startswith("=") for word in line.split()]
        passages = [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS, WORDS)]
        (to / f"{name}.lines").write_text("\n".join(passages) + "\n", encoding="utf-8")


def table(options: argparse.Namespace, folder: Path) -> None:
    split(options.data, folder)
    test, valid = (f"lines('{folder}/{name}.lines', labels=false)" for name in ("test", "valid"))
    task = f"text(model=transformer3(width={options.width}), data={test}, public={valid}, limit={options.limit})"
    scale = f"epochs={options.epochs}, hidden=[{options.hidden[0]}, {options.hidden[1]}]"
    for attack, know in ((f"lti({scale})", "public_data"),
                         (f"lti_p({scale}, epoch={options.epoch})", "token_frequencies")):
        audit = Audit(task=task, client="one_step(mode=eval)", threats=(f"informed+lengths+{know}",),
                      defenses=tuple(options.defenses), attacks=(attack,), trials=options.sentences, budget="10 h",
                      metrics=("token_accuracy", "rouge1", "rouge2", "rougeL"))
        for row in measured(audit, 1):
            scores = ", ".join(f"{name} {score.mean:.3f}" for name, score in row.scores.items())
            print(f"{row.cell.defense}, {attack}, width {options.width}, {options.limit} tokens, {row.samples} "
                  f"passages: {scores}; {row.seconds:.0f} s", flush=True)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("part", nargs="?", choices=["split", "table"], default="table")
    given.add_argument("--data", type=Path, default=Path("data/wikitext2"))
    given.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    given.add_argument("--width", type=int, default=32)
    given.add_argument("--limit", type=int, default=16)
    given.add_argument("--epochs", type=int, default=20)
    given.add_argument("--epoch", type=int, default=10_000)
    given.add_argument("--hidden", type=int, nargs=2, default=[600, 1000])
    given.add_argument("--sentences", type=int, default=100)
    options = given.parse_args()
    if options.part == "split":
        split(options.data, Path("data/wikitext2"))
        return
    with tempfile.TemporaryDirectory() as folder:
        table(options, Path(folder))


if __name__ == "__main__":
    main()
