"""Most defenses act on the finished update: one way to say so."""

from collections.abc import Callable

from gradleak.calculus import each_lane
from gradleak.rng import Rng
from gradleak.types import Batch, Client, Params, Update


def after(client: Client, change: Callable[[Update, Rng | None], Update]) -> Client:
    """The client, with `change` applied to what it would send; the change draws from a stream of its own."""

    def changed(params: Params, batch: Batch, rng: Rng | None) -> Update:
        draws = rng / "defense" if rng else None
        return each_lane(lambda sent: change(sent, draws), client(params, batch, rng))

    return changed
