"""Labels counted from the last layer: share of labels right in batches of 1 to 64, fresh and briefly trained models.

python bench/labels.py
"""

from common import PHOTOS

from gradleak import registry
from gradleak.attacks.parts.labels import Counted
from gradleak.metrics.labels import label_accuracy
from gradleak.rng import Rng
from gradleak.spec import parse
from gradleak.threats import threat
from gradleak.world.round import send

SIZES = (1, 4, 8, 16, 32, 64)
print(f"{'model':34} " + " ".join(f"{size:>6}" for size in SIZES))
for model, train in (("lenet", 0), ("convnet", 0), ("convnet", 100), ("mlp", 0), ("resnet20", 0)):
    world = registry.build("task", parse(f"image(model={model}, data={PHOTOS}, train={train})")).open(Rng(0))
    part = registry.build("client", parse("one_step(mode=eval)"))
    client, none = part.of(world.learner), registry.build("defense", parse("none"))
    shares = []
    for size in SIZES:
        right = []
        for trial in range(4):
            secret = world.draw(size, trial, part, Rng(0))
            sent = send(world, part, client, none, secret, Rng(0) / trial)
            seen = threat("curious").observe(sent.release, client, none)
            right += label_accuracy()(Counted().read(seen, Rng(1)).labels, secret.labels)
        shares.append(sum(right) / len(right))
    print(f"{f'{model}, {train} training steps':34} " + " ".join(f"{share:6.0%}" for share in shares), flush=True)
