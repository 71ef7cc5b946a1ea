"""Gradients that are never multiplied out against those that are, in float64: values and slopes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gradleak import products as ways
from gradleak import registry
from gradleak.attacks.parts import objectives
from gradleak.calculus import factoring, gradient
from gradleak.factored import Factored, Reference, dense
from gradleak.lanes import Lanes
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.tap import Untapped
from gradleak.types import Batch, Params, Replay, Update

TRANSFORMER3 = "text(model=transformer3(width=32), data=sentences, limit=8)"
SLIGHT = 1e-12


@dataclass(frozen=True)
class Case:
    """A client in float64, an update of it, and candidates: R lanes of n examples."""

    replay: Replay
    update: Update
    x: Tensor
    y: Tensor
    extra: Mapping[str, Tensor]

    @property
    def tokens(self) -> int:
        return self.x.shape[1] * self.x.shape[2]

    def lanes(self, factor: bool = True) -> Lanes:
        return Lanes(self.replay, self.x, self.y, self.extra, factor)


def case(world, numbers: list[int], lanes: int) -> Case:
    """Every mode and weight of a world's model in float64; candidates near the truth."""
    for module in world.learner.modes.values():
        module.double()
    params = {name: value.double() for name, value in world.learner.params.items()}
    truth = world.secret(numbers).batch

    def replay(batch: Batch) -> Update:
        return gradient(lambda p: world.learner.loss(p, batch, "eval"), params)

    x = truth.x.double()
    with torch.no_grad():
        update = replay(Batch(x, truth.y, truth.extra))
    many = x + 0.3 * x.std() * torch.randn(lanes, *x.shape, generator=Rng(1).torch(), dtype=torch.float64)
    return Case(replay, update, many, truth.y.expand(lanes, *truth.y.shape),
                {name: value.expand(lanes, *value.shape) for name, value in truth.extra.items()})


@pytest.fixture(scope="session")
def cases(text_task) -> Callable[[str], Case]:
    tasks = {
        "bert": text_task("bert", width=96), "roberta": text_task("roberta", width=96),
        "bert, all trained": text_task("bert", ", embeddings=trained, positions=trained", 96),
        "gpt2": text_task("gpt2", width=96), "gpt2, places trained": text_task("gpt2", ", positions=trained", 96),
        "transformer3": TRANSFORMER3, "minilm": "text(model=minilm, data=sentences)",
        "mlp": "image(model=mlp(width=40), data=photos(size=8, count=40))",
    }

    @cache
    def made(name: str) -> Case:
        world = registry.build("task", parse(tasks[name])).open(Rng(3))
        return case(world, [0], 2) if name == "minilm" else case(world, [0, 2], 3)

    return made


FAST = ["bert", "bert, all trained", "roberta", "gpt2", "gpt2, places trained", "transformer3", "mlp"]


def flat(stacked: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten(1) for value in stacked.values()], 1)


def plain_cosine(stacked: Mapping[str, Tensor], update: Update) -> Tensor:
    return 1 - torch.cosine_similarity(flat(stacked), flat({k: v[None] for k, v in update.items()}), eps=0)


def plain_layers(stacked: Mapping[str, Tensor], update: Update) -> Tensor:
    total = sum(float(value.square().sum()) for value in update.values())
    heard = {k: v for k, v in update.items() if float(v.square().sum()) > SLIGHT * total}
    return torch.stack([plain_cosine({k: stacked[k]}, {k: v}) for k, v in heard.items()]).mean(0)


def plain_l2(stacked: Mapping[str, Tensor], update: Update) -> Tensor:
    return (flat(stacked) - flat({k: v[None] for k, v in update.items()})).square().sum(1)


def plain_both(stacked: Mapping[str, Tensor], update: Update) -> Tensor:
    off = flat(stacked) - flat({k: v[None] for k, v in update.items()})
    return off.square().sum(1) + 0.01 * off.abs().sum(1)


OBJECTIVES = {"cosine": (objectives.cosine, plain_cosine), "layer_cosine": (objectives.layer_cosine, plain_layers),
              "l2": (objectives.l2, plain_l2), "l2_l1": (objectives.l2_l1(0.01), plain_both)}


def fast(given: Case, objective: str, rank: int, lanes: Lanes | None = None) -> tuple[Tensor, Tensor]:
    x = given.x.clone().requires_grad_()
    stacked = (lanes or given.lanes())(x, given.y, given.extra)
    found = OBJECTIVES[objective][0](stacked, Reference(given.update, rank))
    return found.detach(), torch.autograd.grad(found.sum(), x)[0]


def slow(given: Case, objective: str) -> tuple[Tensor, Tensor]:
    """One plain replay at a time, and formulas from the book."""
    x = given.x.clone().requires_grad_()
    each = [given.replay(Batch(x[i], given.y[i], {k: v[i] for k, v in given.extra.items()})) for i in range(len(x))]
    stacked = {name: torch.stack([update[name] for update in each]) for name in given.update}
    found = OBJECTIVES[objective][1](stacked, given.update)
    return found.detach(), torch.autograd.grad(found.sum(), x)[0]


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], within: float = 1e-10) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert bool(theirs.isfinite().all()) and float(theirs.abs().max()) > 0
        assert float((mine - theirs).norm() / theirs.norm()) <= within


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("rank", [True, False], ids=["thin", "whole"])
def test_matching_is_exact(cases, name: str, objective: str, rank: bool) -> None:
    given = cases(name)
    assert given.lanes().way == "factored"
    same(fast(given, objective, given.tokens if rank else 0), slow(given, objective))


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_matching_is_exact_on_minilm(cases, objective: str) -> None:
    given = cases("minilm")
    assert given.lanes().way == "factored" and len(Reference(given.update, given.tokens).low) >= 30
    same(fast(given, objective, given.tokens), slow(given, objective))


@pytest.mark.parametrize("objective", ["cosine", "layer_cosine", "l2"])
@pytest.mark.parametrize("way", ["low", "gram", "multiplied"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_each_of_the_three_ways_is_exact(cases, monkeypatch, name: str, way: str, objective: str) -> None:
    given, taken = cases(name), []

    def forced(value: Factored, low: object) -> str:
        taken.append("gram" if way == "low" and low is None else way)
        return taken[-1]

    monkeypatch.setattr(ways, "_cheapest", forced)
    same(fast(given, objective, given.tokens if way == "low" else 0), slow(given, objective))
    assert taken.count(way) >= 8


def test_gpt2s_layers_are_flipped_and_tables_are_looked_up(cases) -> None:
    given = cases("gpt2, places trained")
    stacked = given.lanes()(given.x, given.y, given.extra)
    layer = stacked["transformer.h.0.attn.c_attn.weight"]
    assert isinstance(layer, Factored) and layer.flipped
    places = stacked["transformer.wpe.weight"]
    assert isinstance(places, Factored) and places.rows == 24 and not places.inputs.is_floating_point()
    chosen = F.one_hot(places.inputs, places.rows).to(places.deltas)
    eye = torch.einsum("rno,rni->rio", places.deltas, chosen)
    assert torch.allclose(places.dense(), eye, atol=1e-14)


@pytest.mark.parametrize("name", FAST)
def test_many_lanes_are_one_at_a_time(cases, name: str) -> None:
    given = cases(name)
    lanes = given.lanes()
    together = dense(lanes(given.x, given.y, given.extra))
    for i in range(len(given.x)):
        alone = dense(lanes(given.x[i : i + 1], given.y[i : i + 1], {k: v[i : i + 1] for k, v in given.extra.items()}))
        for key, value in alone.items():
            assert torch.allclose(value[0], together[key][i], rtol=1e-9, atol=1e-14)


DEFENSES = ["none", "noise(sigma=0.01)", "clip(norm=0.1)", "prune(keep=0.1)", "prune(keep=0.1, by=layer)",
            "prune(keep=0.3, by=random)", "sign", "quantise(bits=4)", "quantise(bits=4, stochastic=false)",
            "chain(clip(norm=0.1), prune(keep=0.2))", "chain(prune(keep=0.3), sign)", "topk(keep=0.1)"]
SLOWLY = ["dpsgd(clip=0.1, multiplier=0)", "aggregate(clients=2)", "soteria(prune=0.5)"]
OTHERS = sorted(set(registry.names("defense")) - {spec.partition("(")[0] for spec in DEFENSES + SLOWLY})


@pytest.mark.parametrize("spec", [*DEFENSES, *SLOWLY, *OTHERS])
def test_every_defense_is_mimicked_in_lanes_as_alone(play, text_task, spec: str) -> None:
    scene = play(spec, "informed", 2, "one_step(mode=eval)", task=text_task())
    truth, seen = scene.secret.batch, scene.seen
    x = truth.x + 0.1 * truth.x.std() * torch.randn(3, *truth.x.shape, generator=Rng(0).torch())
    y, extra = truth.y.expand(3, -1), {k: v.expand(3, *v.shape) for k, v in truth.extra.items()}
    lanes = Lanes(seen.replay, x, y, extra, factor=True)
    assert lanes.way == "factored" or spec in SLOWLY + OTHERS
    with torch.no_grad():
        whole = dense(lanes(x, y, extra))
        each = [seen.replay(Batch(x[i], y[i], {k: v[i] for k, v in extra.items()})) for i in range(3)]
    for i, update in enumerate(each):
        gap = sum(float((whole[k][i] - update[k]).square().sum()) for k in update)
        assert gap <= (1e-2 if "sign" in spec else 1e-6) * sum(float(v.square().sum()) for v in update.values())


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.first(x)))))).mean(1))


class Tied(nn.Module):
    """A table that is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mid = nn.Embedding(3, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(torch.arange(x.shape[1]).remainder(3).expand(x.shape[:2]))
        return F.linear(torch.tanh(self.mid(x + rows)).mean(1), self.table.weight)


class Heads(nn.Module):
    """The library's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(x, x, x, need_weights=True)[0].mean(1))


class Turned(nn.Module):
    """A weight used the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.mid, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(F.linear(torch.tanh(self.mid(x)), self.mid.weight.mT)).mean(1))


class Sliced(nn.Module):
    """Part of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.mid, self.out = nn.Linear(6, 12), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(F.linear(x, self.mid.weight[3:9], self.mid.bias[3:9])).mean(1))


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


class Parametrised(nn.Module):
    """A weight that is computed from another."""

    def __init__(self) -> None:
        super().__init__()
        self.mid, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        parametrize.register_parametrization(self.mid, "weight", Half())

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mid(x)).mean(1))


class Mixing(nn.Module):
    """Examples of a batch that look at one another."""

    def __init__(self) -> None:
        super().__init__()
        self.mid, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.mid(x)
        return self.out(torch.tanh(wide - wide.mean(0)).mean(1))


class Unused(nn.Module):
    """A layer without a gradient, and one that the loss does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.mid, self.idle, self.blind, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.blind(x)
        return self.out(torch.tanh(self.mid(x)).mean(1))


def of_module(build: type[nn.Module]) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().double()
    params: Params = {name: value.detach() for name, value in module.named_parameters()}

    def replay(batch: Batch) -> Update:
        def loss(p: Params) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(module, dict(p), (batch.x,)), batch.y)

        return gradient(loss, params)

    x = torch.randn(4, 2, 5, 6, generator=Rng(0).torch(), dtype=torch.float64)
    y = torch.tensor([0, 2])
    with torch.no_grad():
        update = replay(Batch(x[0], y))
    return Case(replay, update, x[1:], y.expand(3, 2), {})


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("build", [Twice, Unused])
def test_reused_and_unused_layers_are_exact(build: type[nn.Module], objective: str) -> None:
    given = of_module(build)
    assert given.lanes().way == "factored"
    same(fast(given, objective, 0), slow(given, objective))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("build", [Tied, Heads, Turned, Sliced, Parametrised, Mixing])
def test_what_is_not_followed_is_multiplied_out(build: type[nn.Module], objective: str) -> None:
    given = of_module(build)
    lanes = given.lanes()
    assert lanes.way != "factored"
    same(fast(given, objective, 0, lanes), slow(given, objective))


@pytest.mark.parametrize("build", [Tied, Heads, Sliced, Parametrised])
def test_a_strange_use_of_a_weight_is_noticed(build: type[nn.Module]) -> None:
    given = of_module(build)
    with pytest.raises(Untapped), factoring(1):
        given.replay(Batch(given.x[0], given.y[0]))


def test_a_fast_way_that_gives_something_else_is_refused() -> None:
    given = of_module(Twice)

    def wrong(batch: Batch) -> Update:
        return {name: value if name != "again.weight" else value * (1 + 0.5 * (len(batch.x) > 2))
                for name, value in given.replay(batch).items()}

    assert Lanes(wrong, given.x, given.y, {}, factor=True).way != "factored"


def test_thin_references(cases) -> None:
    given = cases("bert")
    thin = Reference(given.update, given.tokens)
    assert len(thin.low) >= 10
    for name, low in thin.low.items():
        assert low.left.shape[1] <= given.tokens
        assert float((low.left @ low.right - given.update[name]).norm() / given.update[name].norm()) < 1e-12
    noisy = {name: value + 1e-6 * value.square().mean().sqrt() * (Rng(0) / name).normal(value.shape, value)
             for name, value in given.update.items()}
    pooled = [name for name in thin.low if "pooler" not in name]
    assert not set(Reference(noisy, given.tokens).low) & set(pooled)
    assert not Reference(given.update).low


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt2, places trained"])
def test_an_update_aside_is_the_update(cases, name: str) -> None:
    """What a scoring keeps of the sentences that stay is worth as much as their multiplied-out update."""
    given = cases(name)
    stacked = given.lanes()(given.x, given.y, given.extra)
    whole = Reference({k: v[0] for k, v in dense(stacked).items()})
    aside = {k: replace(v, inputs=v.inputs[:1], deltas=v.deltas[:1]) if isinstance(v, Factored) else v[:1]
             for k, v in stacked.items()}
    ours, theirs = ways.crossed(stacked, aside, whole), ways.products(stacked, whole).dots
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-13)
