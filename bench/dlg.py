"""DLG on lenet, 32 px, labels unknown: batch 1 over 16 images, batch 4 over 2 batches, photographs and CIFAR-10.

python bench/dlg.py [photos|cifar] [1|4]        (CIFAR-10 needs data/cifar10.npz)
"""

import sys

from common import PHOTOS, cifar, line, measured

from gradleak.audit.plan import Audit

METRICS = ("psnr", "mse", "ssim", "label_accuracy")
ATTACKS = {1: ("dlg", 16), 4: ("dlg(steps=3000, restarts=1, tv=30)", 2)}
data = {"photos": PHOTOS, "cifar": cifar()}
chosen = [data[word] for word in sys.argv[1:] if word in data] or [spec for spec in data.values() if spec]
sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or [1, 4]
for spec in chosen:
    for batch in sizes:
        attack, trials = ATTACKS[batch]
        audit = Audit(task=f"image(model=lenet, data={spec})", batch=(batch,), threats=("curious",), attacks=(attack,),
                      trials=trials, metrics=METRICS, budget="3 h")
        for row in measured(audit):
            print(line(row), flush=True)
