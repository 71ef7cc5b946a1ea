"""The client's side of text."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradleak import registry
from gradleak.audit.plan import Audit, checked
from gradleak.audit.run import stage
from gradleak.errors import UsageError
from gradleak.residual import distance, residual
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.types import NOTHING, Batch, Know
from gradleak.world.learner import Learner, cross_entropy

transformers = pytest.importorskip("transformers")
MINILM = "text(model=minilm, data=sentences)"
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "in", "rain", "sun", "is", "was", "good", "bad", "very",
         "not", "and", "it", "he", "she", "big", "old", "new", "day", "house", "tree", "up", "##ed", ".", ",", "'", "!"]
SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece() -> object:
    return transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate([*SPECIAL, *WORDS])})


def bytepairs(**specials: str) -> object:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    if "cls_token" in specials:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def saved(family: str, folder: Path) -> str:
    """A tiny random model of a family, as its owner would save it."""
    torch.manual_seed(0)
    frame = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    if family in ("bert", "tinybert", "distilbert", "electra"):
        tokenizer = wordpiece()
        config = {
            "bert": lambda n: transformers.BertConfig(vocab_size=n, max_position_embeddings=24, **SMALL),
            "tinybert": lambda n: transformers.BertConfig(
                vocab_size=n, max_position_embeddings=24, **{**SMALL, "num_hidden_layers": 4}),
            "distilbert": lambda n: transformers.DistilBertConfig(
                vocab_size=n, max_position_embeddings=24, dim=32, n_layers=2, n_heads=2, hidden_dim=64),
            "electra": lambda n: transformers.ElectraConfig(vocab_size=n, max_position_embeddings=24, embedding_size=16,
                                                            **SMALL),
        }[family](len(tokenizer))
        base = transformers.AutoModel.from_config(config)
    elif family == "roberta":
        tokenizer = bytepairs(**frame)
        base = transformers.RobertaModel(transformers.RobertaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=26, pad_token_id=1, bos_token_id=0, eos_token_id=2,
            type_vocab_size=1, **SMALL), add_pooling_layer=False)
    elif family == "gpt2":
        tokenizer = bytepairs(eos_token="<|endoftext|>")
        base = transformers.GPT2Model(transformers.GPT2Config(
            vocab_size=len(tokenizer), n_positions=24, n_embd=32, n_layer=2, n_head=2, bos_token_id=3, eos_token_id=3))
    else:
        tokenizer = bytepairs(bos_token="<s>", eos_token="</s>", pad_token="<pad>")
        base = transformers.LlamaModel(transformers.LlamaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=24, num_key_value_heads=2, pad_token_id=1, **SMALL))
    tokenizer.model_max_length = 24
    base.save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return str(folder / family)


FAMILIES = ("bert", "tinybert", "distilbert", "electra", "roberta", "gpt2", "llama")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def family(folder) -> Callable[[str], str]:
    from functools import cache

    return cache(lambda name: saved(name, folder))


@pytest.fixture
def tiny(family, tmp_path) -> Callable[..., str]:
    """The text of a task with a tiny model."""
    file = tmp_path / "mine.tsv"
    file.write_text("good\tthe cat sat on the mat .\nbad\tit was very bad , he ran\nbad\tnot good\n"
                    "good\tthe big old dog ran\n")

    def task(name: str, more: str = "", pad: str = "") -> str:
        pad = pad or (", pad='<|endoftext|>'" if name == "gpt2" else "")
        return f"text(model=hf('{family(name)}'{pad}), data=lines('{file}'){more})"

    return task


def opened(task: str):
    return registry.build("task", parse(task)).open(Rng(3))


def tokens(world, secret) -> tuple[torch.Tensor, torch.Tensor]:
    """What one would hand to the library itself."""
    there = secret.readings != NOTHING
    return secret.readings.where(there, torch.tensor(world.vocabulary.pad)), there.long()


def client(spec: str, learner: Learner):
    return registry.build("client", parse(spec)).of(learner)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_computes_what_the_library_does_with_tokens(tiny, name: str) -> None:
    world = opened(tiny(name, ", embeddings=trained, positions=trained"))
    learner, secret = world.learner, world.secret([0, 1, 2])
    net = learner.modes["eval"].net
    net.config.pad_token_id = world.vocabulary.pad
    ids, mask = tokens(world, secret)
    with torch.no_grad():
        ours = learner.logits(learner.params, secret.batch, "eval")
        assert torch.allclose(net(input_ids=ids, attention_mask=mask).logits, ours, atol=1e-6)
    net.requires_grad_(True)
    loss = torch.nn.functional.cross_entropy(net(input_ids=ids, attention_mask=mask).logits, secret.labels)
    theirs = dict(zip([n for n, _ in net.named_parameters()],
                      torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True), strict=True))
    update = client("one_step(mode=eval)", learner)(learner.params, secret.batch, None)
    assert set(update) == set(theirs)  # by the names of the model's owner
    assert distance(update, theirs).l2 < 1e-5
    assert distance(client("per_sample(mode=eval)", learner)(learner.params, secret.batch, None), theirs).l2 < 1e-5


def test_trained_embeddings_move_with_local_steps(tiny) -> None:
    world = opened(tiny("bert", ", embeddings=trained"))
    learner, secret = world.learner, world.secret([0, 1])
    net = learner.modes["eval"].net
    ids, mask = tokens(world, secret)
    update = client("local_steps(steps=3, batch=2, rate=0.1, mode=eval)", learner)(learner.params, secret.batch, None)
    import copy

    twin = copy.deepcopy(net)
    named = {n: p.requires_grad_() for n, p in twin.named_parameters() if n in learner.params}
    optimiser = torch.optim.SGD(list(named.values()), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        twin(input_ids=ids, attention_mask=mask, labels=secret.labels).loss.backward()
        optimiser.step()
    word = "bert.embeddings.word_embeddings.weight"
    theirs = {n: (learner.params[n] - p.detach()) / 0.1 for n, p in named.items()}
    assert distance(update, theirs).l2 < 1e-4
    assert theirs[word].abs().sum() > 0 and distance({word: update[word]}, {word: theirs[word]}).l2 < 1e-4


def test_frozen_and_trained_tables(tiny) -> None:
    plain, words, places = (set(opened(tiny("bert", more)).learner.params)
                            for more in ("", ", embeddings=trained", ", positions=trained"))
    assert words - plain == {"bert.embeddings.word_embeddings.weight"}
    assert places - plain == {f"bert.embeddings.{what}_embeddings.weight" for what in ("position", "token_type")}
    assert "ids" not in opened(tiny("bert")).secret([0]).batch.extra


def test_without_a_mask_padding_is_attended(tiny) -> None:
    world = opened(tiny("bert", ", mask=false"))
    secret = world.secret([0, 2])
    ids, _ = tokens(world, secret)
    with torch.no_grad():
        theirs = world.learner.modes["eval"].net(input_ids=ids).logits
        assert torch.allclose(theirs, world.learner.logits(world.learner.params, secret.batch, "eval"), atol=1e-6)
    told = replace(secret.batch, extra={})
    assert torch.equal(world.learner.logits(world.learner.params, told, "eval"),
                       world.learner.logits(world.learner.params, secret.batch, "eval"))


def test_vocabularies(tiny) -> None:
    bert, gpt = opened(tiny("bert")).vocabulary, opened(tiny("gpt2")).vocabulary
    assert (bert.opening, bert.closing, bert.pad) == ((3,), (4,), 0)
    assert not bert.usable[:6].any() and bert.usable[6:].all()
    found = bert.sentence(torch.tensor([3, 6, 8, 34, 4, NOTHING]))
    assert found.pieces == ("the", "cat", "##ed") and found.text == "the cated"
    assert found.framed == "[CLS] the cated [SEP]"
    assert (gpt.opening, gpt.closing, gpt.pad) == ((), (), 3)
    assert not gpt.usable[3] and gpt.usable[4:].all()


def test_a_fine_tuned_head_is_kept_and_its_classes_count(tiny, family, tmp_path) -> None:
    whole = transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=6 + len(WORDS), max_position_embeddings=24, num_labels=3, **SMALL))
    whole.save_pretrained(tmp_path / "tuned")
    wordpiece().save_pretrained(tmp_path / "tuned")
    task = f"text(model=hf('{tmp_path}/tuned'), data=lines('{tmp_path}/mine.tsv'))"
    tiny("bert")
    world = opened(task)
    assert world.learner.classes == 3
    assert torch.equal(world.learner.params["classifier.weight"], whole.classifier.weight)
    (tmp_path / "mine.tsv").write_text("".join(f"{n}\tthe cat\n" for n in range(5)))
    with pytest.raises(UsageError, match=r"5 classes.*head of 3"):
        opened(task)


def test_bad_models_are_refused_in_one_line(tmp_path, family) -> None:
    torch.save({}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text((Path(family("bert")) / "config.json").read_text())
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="save_pretrained") as caught:
            registry.build("language", parse(f"hf('{folder}')")).open(2)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="not a token"):
        registry.build("language", parse(f"hf('{family('gpt2')}', pad='[PAD]')")).open(2)


def test_the_hub_is_asked_only_for_what_is_not_here(monkeypatch, family) -> None:
    import huggingface_hub

    from gradleak.world import language

    asked = []
    load = language._loaded

    def loaded(path: str, classes: int, local: bool):
        asked.append(local)
        if local and path == "someone/bert":
            raise OSError("not in the cache")
        return load(family("bert"), classes, True)

    monkeypatch.setattr(language, "_loaded", loaded)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, timeout: None)
    registry.build("language", parse("hf('someone/bert')")).open(2)
    assert asked == [True, False]
    registry.build("language", parse("hf('here')")).open(2)
    assert asked == [True, False, True]

    def gone(self, name, timeout):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", gone)
    with pytest.raises(UsageError, match=r"cannot be had from the hub \(no route\); give the folder"):
        registry.build("language", parse("hf('someone/bert')")).open(2)


def test_no_code_that_comes_with_a_model_runs(tmp_path, family) -> None:
    import json
    import shutil

    shutil.copytree(family("bert"), tmp_path / "evil")
    config = json.loads((tmp_path / "evil" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "evil.Config",
                                                "AutoModelForSequenceClassification": "evil.Model"}}
    (tmp_path / "evil" / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UsageError):
        registry.build("language", parse(f"hf('{tmp_path}/evil')")).open(2)
    assert not (tmp_path / "ran").exists()


OWN = """
import torch
from torch import nn
from transformers import BertTokenizer

class Bag(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.out = nn.Embedding(8, 4), nn.Linear(4, classes)

    def get_input_embeddings(self):
        return self.words

    def forward(self, inputs_embeds, attention_mask=None):
        mask = torch.ones(inputs_embeds.shape[:2]) if attention_mask is None else attention_mask
        return self.out((inputs_embeds * mask[..., None]).sum(1))

def build(classes):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"]
    return Bag(classes), BertTokenizer(vocab={name: i for i, name in enumerate(names)})

def broken(classes):
    return 3
"""


def test_a_model_of_ones_own(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_text_model.py").write_text(OWN)
    (tmp_path / "own.tsv").write_text("a\tgood day\nb\tbad day bad\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = f"text(model=python('own_text_model:build'), data=lines('{tmp_path}/own.tsv'))"
    world = opened(task)
    assert set(world.learner.params) == {"out.weight", "out.bias"}
    assert world.learner.loss(world.learner.params, world.secret([0, 1]).batch, "eval").isfinite()
    with pytest.raises(UsageError, match="returns \\(module, tokenizer\\)"):
        opened(task.replace(":build", ":broken"))


@pytest.mark.parametrize(("content", "message"), [
    (b"good\tfine\n\nbad\tpoor\n", "line 2 has no text"), (b"good\tfine\nbad poor\n", "line 2 has no tab"),
    (b"good\tfine\nbad\t \n", "line 2 has no sentence"), (b"\tfine\n", "line 1 has no label"),
    (b"good\tfine\nbad\t\xff\n", "line 2: not UTF-8"), (b"good\tfine\ngood\tnice\n", "one class only"),
    (b"99999\tfine\n", "number the classes"), (b"", "line 1 has no text"),
    (b"a\tthe cat\nb\t" + b"the cat " * 20, "line 2: 42 tokens.*reads 24.*limit=24"),
])
def test_bad_files_are_refused_with_the_line(tiny, tmp_path, content: bytes, message: str) -> None:
    task = tiny("bert")
    (tmp_path / "mine.tsv").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        opened(task)


def test_lines(tmp_path) -> None:
    (tmp_path / "a.tsv").write_bytes("\ufeffgood\tnaïve café\r\nbad\ttab\tinside\r\n".encode())
    texts = registry.build("corpus", parse(f"lines('{tmp_path}/a.tsv')")).load()
    assert texts.sentences == ("naïve café", "tab\tinside") and texts.y.tolist() == [1, 0]
    (tmp_path / "a.tsv").write_text("2\tx\n0\ty\n")
    texts = registry.build("corpus", parse(f"lines('{tmp_path}/a.tsv')")).load()
    assert texts.y.tolist() == [2, 0] and texts.classes == ("0", "1", "2")
    with pytest.raises(UsageError, match="no such file"):
        registry.build("corpus", parse("lines('nowhere.tsv')")).load()


def test_limits_cut(tiny) -> None:
    secret = opened(tiny("bert", ", limit=5")).secret([0, 1])
    assert secret.readings.shape == (2, 5) and secret.readings[:, -1].tolist() == [4, 4]
    with pytest.raises(UsageError, match="from 3 to 24"):
        opened(tiny("bert", ", limit=2"))


def test_no_padding_token(tiny) -> None:
    task = tiny("gpt2", pad=" ").replace(" )", ")")
    assert opened(task.replace("), data", "), train=2, draw=loss, data")).secret([0]).batch.x.shape[0] == 1
    with pytest.raises(UsageError, match="pad="):
        checked(Audit(task=task, batch=(1, 2), attacks=("linear",)))


def test_sentences_come_with_the_package(open_world) -> None:
    texts = registry.build("corpus", parse("sentences")).load()
    assert len(texts.sentences) == len(set(texts.sentences)) == 120
    assert texts.y.bincount().tolist() == [60, 60] and texts.classes == ("negative", "positive")


def test_minilm(open_world) -> None:
    world = open_world(MINILM)
    secret = world.secret([0, 5])
    assert world.learner.shape == (512, 384) and world.learner.classes == 2
    assert secret.readings[0, 0] == 101 and secret.labels.tolist() == [1, 0]
    there = secret.readings != NOTHING
    assert torch.equal(secret.batch.extra["mask"], there.long())
    ids, _ = tokens(world, secret)
    assert torch.equal(secret.batch.x, world.vocabulary.table[ids])
    assert world.vocabulary.sentence(secret.readings[0]).text == "the soup was hot and tasted like home."
    guess = world.blind(secret)
    assert [int((row != NOTHING).sum()) for row in guess] == there.sum(1).tolist()
    assert not any(torch.equal(row[row != NOTHING], truth[truth != NOTHING])
                   for row in guess for truth in secret.readings)


def test_parameters_are_held_once(open_world) -> None:
    learner = open_world(MINILM).learner
    train, evaluate = (dict(learner.modes[mode].named_parameters()) for mode in ("train", "eval"))
    assert all(train[name].data_ptr() == value.data_ptr() for name, value in evaluate.items())
    assert all(evaluate["net." + name].data_ptr() == value.data_ptr() for name, value in learner.params.items())


def test_masks_replay_the_client_and_can_be_solved_for(play) -> None:
    scene = play(task=MINILM, count=2, client="one_step(mode=train)", who="curious+dropout")
    seen, batch = scene.seen, scene.secret.batch
    sites = seen.sites(batch)
    assert len(sites) == 20 and all(site.share == pytest.approx(0.1) and site.shape[0] == 2 for site in sites)
    masks = seen.facts[Know.DROPOUT]
    assert [tuple(masks[f"drop.{n}"].shape) for n in range(20)] == [site.shape for site in sites]
    assert residual(seen, batch).cosine > 1e-3
    assert residual(seen, Batch(batch.x, batch.y, {**batch.extra, **masks})).l2 < 1e-6
    unknown = {name: torch.full_like(mask, 0.9).requires_grad_() for name, mask in masks.items()}
    update = seen.replay(Batch(batch.x, batch.y, {**batch.extra, **unknown}))
    sum((update[n] - seen.update[n]).square().sum() for n in update).backward()
    assert all(mask.grad is not None and mask.grad.isfinite().all() and mask.grad.abs().sum() > 0
               for mask in unknown.values())


def test_per_sample_drops_what_one_step_does(tiny) -> None:
    learner = (world := opened(tiny("bert"))).learner
    batch = world.secret([0, 1, 2]).batch
    one, each = (client(spec, learner)(learner.params, batch, Rng(4)) for spec in ("one_step", "per_sample"))
    assert distance(each, one).l2 < 1e-5


def test_lengths_go_with_the_labels_or_tell_nothing_of_them(play, tiny) -> None:
    both, lengths = (play(task=tiny("bert"), count=4, who=who) for who in ("curious+labels+lengths", "curious+lengths"))
    truth = both.secret
    pairs = sorted(zip(truth.labels.tolist(), (truth.readings != NOTHING).sum(1).tolist(), strict=True))
    told = both.seen.facts
    assert list(zip(told[Know.LABELS].tolist(), told[Know.LENGTHS].tolist(), strict=True)) == pairs
    assert lengths.seen.facts[Know.LENGTHS].tolist() == sorted(length for _, length in pairs)


def test_a_task_says_what_can_be_told_of_it(tiny) -> None:
    refused = [("image", "curious+lengths"), (tiny("bert", ", embeddings=trained"), "curious+public_data"),
               (tiny("llama"), "curious+dropout"), ("text(model=transformer3)", "curious+labels")]
    for task, who in refused:
        with pytest.raises(UsageError, match=r"cannot be granted|drops nothing"):
            checked(Audit(task=task, threats=(who,), attacks=("linear",)))


def test_metrics_are_the_tasks_own(tiny) -> None:
    (image,), (text,), (causal,) = (Audit(task=task, threats=("curious",)).cells()
                                    for task in ("image", tiny("bert"), "text(model=transformer3)"))
    assert image.metrics == ("psnr", "mse", "ssim", "lpips", "label_accuracy")
    assert text.metrics[0] == "exact_match" and "label_accuracy" in text.metrics
    assert "rougeL" in causal.metrics and "label_accuracy" not in causal.metrics


def test_training_is_the_same_every_time_and_lowers_the_loss(tiny) -> None:
    task = tiny("bert", ", embeddings=trained, train=30, rate=1e-2, draw=loss")
    one, same, before = opened(task), opened(task), opened(tiny("bert", ", embeddings=trained"))
    assert all(torch.equal(one.learner.params[n], same.learner.params[n]) for n in one.learner.params)
    assert one.accuracy is not None and len(one.pool) == 1
    trained = [i for i in range(4) if i not in (Rng(3) / "split").permutation(4)[2:].tolist()]

    def loss(world) -> float:
        return float(world.learner.loss(world.learner.params, world.secret(trained).batch, "eval"))

    assert loss(one) < loss(before) / 2


@pytest.fixture(scope="session")
def causal():
    return opened("text(model=transformer3, data=sentences, limit=16)")


def test_transformer3_is_about_ltis_size_and_looks_back_only(causal) -> None:
    learner, secret = causal.learner, causal.secret([0])
    assert 1.0e6 < sum(p.numel() for p in learner.params.values()) < 1.2e6
    assert learner.classes == 30_522 and not any("words" in name for name in learner.params)
    with torch.no_grad():
        plain = learner.logits(learner.params, secret.batch, "eval")
        x = secret.batch.x.clone()
        x[:, 5] += 1
        other = learner.logits(learner.params, Batch(x, secret.batch.y, secret.batch.extra), "eval")
    assert torch.allclose(plain[:, :5], other[:, :5]) and not torch.allclose(plain[:, 5:], other[:, 5:])


def test_next_tokens_are_the_labels(causal) -> None:
    secret = causal.secret([0, 3])
    row, y = secret.readings[0], secret.batch.y[0]
    length = int((row != NOTHING).sum())
    assert y[: length - 1].tolist() == row[1:length].tolist() and (y[length - 1 :] == -100).all()


def test_language_model_loss_counts_real_places(causal) -> None:
    learner, batch = causal.learner, causal.secret([0, 3]).batch
    hard = learner.loss(learner.params, batch, "eval")
    soft = torch.nn.functional.one_hot(batch.y.clamp_min(0), learner.classes) * (batch.y >= 0)[..., None]
    logits = learner.logits(learner.params, batch, "eval")
    assert torch.allclose(hard, cross_entropy(logits, soft.float()))
    alone = [causal.secret([i]).batch for i in (0, 3)]
    counts = [int((b.y >= 0).sum()) for b in alone]
    each = [float(learner.loss(learner.params, b, "eval")) for b in alone]
    assert float(hard) == pytest.approx(sum(c * e for c, e in zip(counts, each, strict=True)) / sum(counts), rel=1e-5)


def test_a_language_model_round(play, causal) -> None:
    (cell,) = Audit(task="text(model=transformer3, data=sentences, limit=16)", batch=(2,),
                    threats=("curious+lengths",)).cells()
    scene = stage(cell, 0)
    assert scene.exact and scene.truth.cosine < 1e-9
    assert Know.LABELS not in scene.sent.release.facts and Know.LENGTHS in scene.seen.facts
