"""What a client does to its update before sending it, each with what an informed attacker does about it."""

from gradleak.defenses.aggregate import Aggregate
from gradleak.defenses.chain import Chain
from gradleak.defenses.clip import Clip
from gradleak.defenses.dpsgd import DpSgd
from gradleak.defenses.noise import Noise
from gradleak.defenses.none import Nothing
from gradleak.defenses.prune import Prune
from gradleak.defenses.quantise import Quantise
from gradleak.defenses.sign import Sign
from gradleak.defenses.soteria import Soteria
from gradleak.defenses.topk import TopK

__all__ = ["Aggregate", "Chain", "Clip", "DpSgd", "Noise", "Nothing", "Prune", "Quantise", "Sign", "Soteria", "TopK"]
