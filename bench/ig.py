"""IG at batch 1: lenet and convnet over 8 photographs, as here and as published; resnet20 fresh and briefly trained.

python bench/ig.py [lenet] [convnet] [resnet20]
"""

import sys

from common import PHOTOS, line, measured

from gradleak.audit.plan import Audit

METRICS = ("psnr", "mse", "ssim", "label_accuracy")
CASES = {
    name: [(f"image(model={name}, data={PHOTOS})", attacks, "one_step", 8)]
    for name, attacks in (("lenet", ("ig", "ig(published=true)")),
                          ("convnet", ("ig(restarts=1)", "ig(restarts=1, published=true)")))
} | {
    "resnet20": [
        (f"image(model=resnet20, data={PHOTOS}{more})", ("ig(steps=400, restarts=1)",), "one_step(mode=eval)", 4)
        for more in ("", ", train=150, draw=loss")
    ],
}
for name in sys.argv[1:] or CASES:
    for task, attacks, client, trials in CASES[name]:
        audit = Audit(task=task, client=client, threats=("curious",), attacks=attacks, trials=trials, metrics=METRICS,
                      budget="3 h")
        for row in measured(audit):
            print(line(row), *row.reasons, sep="\n  ", flush=True)
