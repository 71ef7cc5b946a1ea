"""What can go wrong, said so that it can be mended: the value, the reason, the remedy."""

from collections.abc import Sequence
from difflib import get_close_matches


class GradleakError(Exception):
    """An error meant for the user; its text is the whole message."""


class UsageError(GradleakError):
    """The input cannot be used. The command line shows the text on one line and exits with 2."""


class Unsuited(GradleakError):
    """This attack cannot work on this observation, for the reason given; the cell becomes a row that says so."""


class Unscored(GradleakError):
    """A metric that cannot be computed here, with the reason; reported as such, never as a number."""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The tail of a "no such name" message: the nearest known name, or all of them."""
    if not known:
        return "there is none to give"
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
