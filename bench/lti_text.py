"""LTI, LTI-P, regression and TAG on text: the next word, three causal layers, frozen embeddings (LTI's Table 2).

`--data DIR` holds WikiText-2's valid.txt (public) and test.txt (private); `split` writes both as one passage a line to
data/wikitext2, for lti_table2.toml. Without it, prints token accuracy and ROUGE under each defense at the scale given:
--words N leaves rare words out of the text and of the model, which has as many outputs as words.
"""

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from common import measured

from gradleak.audit.plan import Audit
from gradleak.registry import register
from gradleak.world.language import Language, Transformer3, opened
from gradleak.world.reader import NextWord

ATTACKS = ["ridge", "lti", "lti_p", "tag"]
DEFENSES = ("none", "sign", "prune(keep=0.01)", "noise(sigma=0.01)")
WORDS = 24
"""Of a passage: cut to so many tokens as the task says."""

ALIKE = 3
"""First words in which a public passage may not agree with a private one: cut to few tokens they could be the same."""


@register("language", "frequent3")
@dataclass(frozen=True)
class Frequent3(Transformer3):
    """`transformer3` over the words of a list, one a line."""

    file: str = ""

    def open(self, classes: int) -> Language:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words = ["[PAD]", "[UNK]", *Path(self.file).read_text(encoding="utf-8").split()]
        made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
        return opened(NextWord(len(words), self.width, 3, self.heads), tokenizer, None, repr(self), len(words))


def split(source: Path, to: Path, frequent: int | None = None) -> None:
    """Passages, and the words that are left in them."""
    to.mkdir(parents=True, exist_ok=True)
    texts = {name: [word for line in (source / f"{name}.txt").read_text(encoding="utf-8").lower().splitlines()
                    if not line.lstrip().startswith("=") for word in line.split()] for name in ("test", "valid")}
    known = [word for word, _ in Counter(texts["valid"]).most_common(frequent)]
    (to / "words.txt").write_text("\n".join(known), encoding="utf-8")
    left, private = set(known), set[tuple[str, ...]]()
    for name, words in texts.items():
        words = [word for word in words if word in left] if frequent else words
        passages = [words[i : i + WORDS] for i in range(0, len(words) - WORDS, WORDS)]
        passages = [each for each in passages if tuple(each[:ALIKE]) not in private]
        private = {tuple(each[:ALIKE]) for each in passages} if name == "test" else private
        (to / f"{name}.lines").write_text("".join(f"{' '.join(each)}\n" for each in passages), encoding="utf-8")


def table(options: argparse.Namespace, folder: Path) -> None:
    split(options.data, folder, options.words)
    test, valid = (f"lines('{folder}/{name}.lines', labels=false)" for name in ("test", "valid"))
    model = f"frequent3(width={options.width}, file='{folder}/words.txt')" if options.words else (
        f"transformer3(width={options.width})")
    task = f"text(model={model}, data={test}, public={valid}, limit={options.limit})"
    scale = f"epochs={options.epochs}, hidden=[{options.hidden[0]}, {options.hidden[1]}]"
    attacks = {"lti": (f"lti({scale})", "informed+lengths+public_data"),
               "lti_p": (f"lti_p({scale}, epoch={options.epoch})", "informed+lengths+token_frequencies"),
               "ridge": (f"ridge_inverter(passages={options.passages}, rounds={options.rounds})",
                         "informed+lengths+public_data"),
               "tag": (f"tag(steps={options.steps})", "informed+lengths")}
    for attack, threat in (attacks[name] for name in options.attacks):
        audit = Audit(task=task, client="one_step(mode=eval)", threats=(threat,),
                      defenses=tuple(options.defenses), attacks=(attack,), trials=options.sentences, budget="10 h",
                      metrics=("token_accuracy", "rouge1", "rouge2", "rougeL"))
        for row in measured(audit, 1):
            scores = ", ".join(f"{name} {score.mean:.3f}" for name, score in row.scores.items())
            print(f"{row.cell.defense}, {attack}, width {options.width}, {options.limit} tokens"
                  f"{f' of {options.words} words' if options.words else ''}, {row.samples} "
                  f"passages: {scores}; {row.seconds:.0f} s", flush=True)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("part", nargs="?", choices=["split", "table"], default="table")
    given.add_argument("--data", type=Path, default=Path("data/wikitext2"))
    given.add_argument("--defenses", nargs="+", default=list(DEFENSES))
    given.add_argument("--width", type=int, default=32)
    given.add_argument("--words", type=int, help="the most frequent ones alone")
    given.add_argument("--limit", type=int, default=16)
    given.add_argument("--epochs", type=int, default=20)
    given.add_argument("--epoch", type=int, default=10_000)
    given.add_argument("--hidden", type=int, nargs=2, default=[600, 1000])
    given.add_argument("--steps", type=int, default=200, help="of tag")
    given.add_argument("--passages", type=int, default=5000, help="of ridge")
    given.add_argument("--rounds", type=int, default=5, help="of ridge")
    given.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    given.add_argument("--sentences", type=int, default=100)
    options = given.parse_args()
    if options.part == "split":
        split(options.data, Path("data/wikitext2"))
        return
    with tempfile.TemporaryDirectory() as folder:
        table(options, Path(folder))


if __name__ == "__main__":
    main()
