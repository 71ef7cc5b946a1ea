"""Whether a model's examples can be told apart: what differential privacy asks of it, by Opacus's own rules."""

import copy

from gradleak.errors import UsageError
from gradleak.world.learner import Learner


def refused(learner: Learner) -> str | None:
    """Why DP-SGD cannot train this model, with the fix; None if it can."""
    try:
        from opacus.validators import ModuleValidator
    except ImportError:
        raise UsageError("dpsgd needs Opacus: pip install 'gradleak[dp]'") from None
    module = copy.deepcopy(learner.modes["train"]).train()
    for name, weight in module.named_parameters():
        weight.requires_grad_(name.removeprefix(learner.prefix) in learner.params)
    problems = ModuleValidator.validate(module, strict=False)
    if not problems:
        return None
    said = " ".join(str(problems[0]).split())
    return (f"dpsgd: a layer mixes examples, so that none can be clipped alone ({said[:160]}); replace it, as "
            "opacus.validators.ModuleValidator.fix(model) does (GroupNorm for BatchNorm), or audit another defense")
