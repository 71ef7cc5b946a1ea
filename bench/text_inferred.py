"""What an attacker infers of sentences before any search: their labels, and how many tokens there are.

python bench/text_inferred.py [batches] [--data DIR]
"""

import argparse
import tempfile
from pathlib import Path

import torch
from text import DATA, drawn

from gradleak.attacks.parts.labels import Counted
from gradleak.attacks.parts.lengths import tokens
from gradleak.audit.plan import Audit
from gradleak.audit.run import stage
from gradleak.rng import Rng
from gradleak.types import NOTHING


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("batches", type=int, nargs="?", default=6)
    options.add_argument("--data", type=Path, default=DATA, help="a folder with cola in it")
    given = options.parse_args()
    print(f"CoLA, MiniLM, one_step(mode=eval), nothing granted; of {given.batches} batches:")
    with tempfile.TemporaryDirectory() as folder:
        file = drawn("cola", given.data, 4 * given.batches, Path(folder))
        for size in (1, 2, 4):
            (cell,) = Audit(task=f"text(model=minilm, data=lines({str(file)!r}))", client="one_step(mode=eval)",
                            batch=(size,), threats=("curious",), attacks=("tag",)).cells()
            labels = lengths = 0
            for trial in range(given.batches):
                scene = stage(cell, trial)
                read = Counted().read(scene.seen, Rng(0) / trial).labels
                labels += torch.equal(read.sort().values, scene.secret.labels.sort().values)
                lengths += tokens(scene.seen) == int((scene.secret.readings != NOTHING).sum())
            print(f"  {size} sentences: every label right in {labels}, the number of tokens in {lengths}", flush=True)


if __name__ == "__main__":
    main()
