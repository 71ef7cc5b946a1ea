"""Names to makers. Built-ins register on import of their package, others through entry points `gradleak.<kinds>`."""

import importlib
import inspect
import types as python_types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar

from gradleak.errors import UsageError, did_you_mean
from gradleak.spec import Call, is_name, show
from gradleak.types import Attack, Defense, Metric

Maker = TypeVar("Maker", bound=Callable[..., Any])

PACKAGES = {
    "attack": "gradleak.attacks",
    "suite": "gradleak.audit.suite",
    "training": "gradleak.audit.training",
    "defense": "gradleak.defenses",
    "metric": "gradleak.metrics",
    "prior": "gradleak.attacks.parts.language",
    "model": "gradleak.world.models",
    "data": "gradleak.world.data",
    "language": "gradleak.world.language",
    "corpus": "gradleak.world.corpora",
    "client": "gradleak.world.clients",
    "task": "gradleak.world",
}
PLURALS = {kind: {"data": "data", "corpus": "corpora"}.get(kind, f"{kind}s") for kind in PACKAGES}
_makers: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in PACKAGES}
_kinds: dict[object, str] = {Attack: "attack", Defense: "defense", Metric: "metric"}


def register(kind: str, name: str) -> Callable[[Maker], Maker]:
    """Enrol a maker under a name; a frozen dataclass also gets a `repr` in the grammar."""

    def enrol(maker: Maker) -> Maker:
        there = _makers[kind].get(name)
        if there is not None and (there.__module__, there.__qualname__) != (maker.__module__, maker.__qualname__):
            raise UsageError(f"{kind} {name!r} is already registered by {there.__module__}; choose another name")
        _makers[kind][name] = maker
        if is_dataclass(maker):
            maker.__repr__ = _spec_repr(name)  # type: ignore[method-assign]
        return maker

    return enrol


def kind_of(protocol: Maker, kind: str) -> Maker:
    """Say that arguments annotated with this type are built as that kind."""
    _kinds[protocol] = kind
    return protocol


def _spec_repr(name: str) -> Callable[[Any], str]:
    def represent(self: Any) -> str:
        given = tuple((f.name, _plain(getattr(self, f.name))) for f in fields(self) if f.init and f.repr)
        return repr(Call(name, (), tuple(item for item in given if item[1] is not None)))

    return represent


def _plain(value: object) -> object:
    return Call(value) if isinstance(value, str) and is_name(value) else value


def names(kind: str) -> list[str]:
    """Every registered name of a kind, entry points included."""
    _load(kind)
    return sorted(_makers[kind])


def maker(kind: str, name: str) -> Callable[..., Any]:
    """The maker of a name, or an error with the nearest one."""
    _load(kind)
    if name not in _makers[kind]:
        raise UsageError(f"unknown {kind} {name!r}: {did_you_mean(name, list(_makers[kind]))}")
    return _makers[kind][name]


@cache
def _load(kind: str) -> None:
    importlib.import_module(PACKAGES[kind])
    for point in entry_points(group=f"gradleak.{PLURALS[kind]}"):
        if point.name not in _makers[kind]:
            register(kind, point.name)(_loaded(point))


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    try:
        return point.load()  # type: ignore[no-any-return]
    except (ImportError, AttributeError, SyntaxError) as problem:
        raise UsageError(f"plugin {point.name} ({point.value}): {problem}; mend or uninstall it") from None


def build(kind: str, call: Call) -> Any:
    """The object a call describes; every argument checked against the maker's signature first."""
    made = maker(kind, call.name)
    signature = inspect.signature(made)
    hints = typing.get_type_hints(made.__init__ if isinstance(made, type) else made)  # type: ignore[misc]
    known = [name for name, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    for key, _ in call.kwargs:
        if key not in known:
            raise UsageError(f"{call!r}: {call.name} has no argument {key!r}: {did_you_mean(key, known)}")
    try:
        bound = signature.bind(*call.args, **dict(call.kwargs))
    except TypeError as problem:
        raise UsageError(f"{call!r}: {problem}; {call.name} takes ({', '.join(known)})") from None
    for name, value in bound.arguments.items():
        where = f"{call!r}: {name}"
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(_argument(item, hints.get(name), where) for item in value)
        else:
            bound.arguments[name] = _argument(value, hints.get(name), where)
    return made(*bound.args, **bound.kwargs)


def _argument(value: object, hint: Any, where: str) -> Any:
    if hint is None or hint is Any:
        return value
    if hint in _kinds:
        if not isinstance(value, Call):
            raise UsageError(f"{where} must be a {_kinds[hint]} by name, not {show(value)}")
        return build(_kinds[hint], value)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, python_types.UnionType):
        return _first_fitting(value, options, where)
    if origin is Literal:
        word = _word(value)
        if word not in options:
            raise UsageError(f"{where} must be one of {', '.join(map(str, options))}, not {show(value)}")
        return word
    if origin is tuple:
        items = value if isinstance(value, tuple) else (value,)
        return tuple(_argument(item, options[0], where) for item in items)
    return _scalar(value, hint, where)


def _first_fitting(value: object, options: tuple[Any, ...], where: str) -> Any:
    problems = []
    for option in options:
        try:
            return _argument(value, option, where)
        except UsageError as problem:
            problems.append(str(problem))
    raise UsageError(problems[0])


def _scalar(value: object, hint: Any, where: str) -> Any:
    if hint is type(None):
        if value is None or value == Call("none"):
            return None
        raise UsageError(f"{where} must be none")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is str:
        value = _word(value)
    if hint is bool and value in (Call("true"), Call("false")):
        value = value == Call("true")
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    plain = {int: "a whole number", float: "a number", str: "a word or a quoted string", bool: "true or false"}
    raise UsageError(f"{where} must be {plain.get(hint, hint)}, not {show(value)}")


def _word(value: object) -> object:
    return value.name if isinstance(value, Call) and not value.args and not value.kwargs else value
