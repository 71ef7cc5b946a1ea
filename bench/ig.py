"""IG at batch 1: lenet and convnet over 8 photographs, as here and as published; resnet20 fresh and briefly trained.

python bench/ig.py
"""

from common import PHOTOS, line, measured

from gradleak.audit.plan import Audit

METRICS = ("psnr", "mse", "ssim", "label_accuracy")
CELLS = [
    (f"image(model=lenet, data={PHOTOS})", ("ig", "ig(published=true)"), "one_step", 8),
    (f"image(model=convnet, data={PHOTOS})", ("ig(restarts=1)", "ig(restarts=1, published=true)"), "one_step", 8),
    (f"image(model=resnet20, data={PHOTOS})", ("ig(steps=400, restarts=1)",), "one_step(mode=eval)", 4),
    (f"image(model=resnet20, data={PHOTOS}, train=150, draw=loss)", ("ig(steps=400, restarts=1)",),
     "one_step(mode=eval)", 4),
]
for task, attacks, client, trials in CELLS:
    audit = Audit(task=task, client=client, threats=("curious",), attacks=attacks, trials=trials, metrics=METRICS,
                  budget="3 h")
    for row in measured(audit):
        print(line(row), *row.reasons, sep="\n  ", flush=True)
