"""Flower, 2 clients, 3 rounds, photographs: what the server could have seen.

    pip install 'gradleak[flower]'
    python examples/flower/image.py captures
"""

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from gradleak import build, capture, parse
from gradleak.capture.format import Training

MODEL, SHAPE, RATE, ROUNDS = "lenet", (3, 32, 32), 0.01, 3  # at 0.1 it is sure of everything after a round


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return build("model", parse(MODEL)).build(SHAPE, 10)


def private(client: int, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = build("data", parse("photos(size=32, count=40)")).load()
    number = 6 * client + turn
    return images.x[number : number + 1], images.y[number : number + 1]


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net, config = network(), message.content["config"]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = private(int(context.node_config["partition-id"]), int(config["server-round"]))
    F.cross_entropy(net(x), y).backward()
    torch.optim.SGD(net.parameters(), lr=config["lr"]).step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)


def server(into: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        told = Training(steps=1, mode="train", optimiser={"name": "SGD", "lr": RATE})
        strategy = capture.recording(FedAvg(fraction_evaluate=0.0), into, model=MODEL, task="image", shape=SHAPE,
                                     classes=10, training=told)
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=ROUNDS,
                       train_config=ConfigRecord({"lr": RATE}))

    return app


def closest(image: torch.Tensor, turn: int) -> float:
    """PSNR beside the nearer of the two clients' pictures of that round."""
    errors = [float((image - private(client, turn)[0][0]).square().mean()) for client in (0, 1)]
    return -10 * math.log10(max(min(errors), 1e-12))


def main() -> None:
    into = Path(sys.argv[1] if len(sys.argv) > 1 else "captures")
    run_simulation(server(into), client_app, num_supernodes=2,
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    scores = []
    for found in capture.find(into):
        (image,) = capture.attack(found.path, "recursive").images
        scores.append(closest(image, found.note.round or 0))
        sys.stdout.write(f"round {found.note.round}, client {found.note.client}: {scores[-1]:.1f} dB\n")
    sys.exit(0 if min(scores) > 25 else 1)


if __name__ == "__main__":
    main()
