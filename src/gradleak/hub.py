"""Models of others, from a folder or the hub: by the library's own rules, and with one clear error."""

import importlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, TypeVar

from gradleak.errors import UsageError

INSTALL = "pip install 'gradleak[text]'"

Loaded = TypeVar("Loaded")


def library(name: str, what: str, remedy: str = INSTALL) -> Any:
    """A module that may not be installed; `what` needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise UsageError(f"{what} {name.partition('.')[0]} ({problem}): {remedy}") from None


@contextmanager
def quiet(what: str) -> Iterator[None]:
    """Loading shows bars and remarks of its own; here errors say what matters."""
    logging = library("transformers", what).utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # not every bar listens to the above
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def found(place: str, name: str, what: str, remedy: str, load: Callable[[bool], Loaded]) -> Loaded:
    """What `load` gives, called with whether local files alone may be used: first so, then with the hub.

    `name` and `remedy` begin and end the error.
    """
    folder = Path(place).is_dir()
    with quiet(what):
        try:
            try:
                return load(True)
            except OSError:
                if folder:
                    raise
            # Says at once that there is no hub.
            library("huggingface_hub", what).HfApi().model_info(place, timeout=10)
            return load(False)
        except UsageError:
            raise
        except Exception as problem:  # a stranger's files may break the library in any way
            why = "cannot be loaded" if folder else "is no folder here and cannot be had from the hub"
            raise UsageError(f"{name}: {why} ({first_line(problem)}); {remedy}") from problem


def first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
