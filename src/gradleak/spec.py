"""One grammar for files, command line, reports and test ids: `chain(clip(norm=1.0), noise(sigma=0.001))`.

Read from Python's syntax tree; nothing is ever executed. `parse(repr(call)) == call`.
"""

import ast
import itertools
import keyword
import math
from collections.abc import Iterator
from dataclasses import dataclass

from gradleak.errors import UsageError

LONGEST = 2_000
DEEPEST = 16
MOST = 20_000
"""Calls that sweeps inside one may stand for."""


@dataclass(frozen=True, repr=False)
class Call:
    """A name with arguments. A bare name is a call without any."""

    name: str
    args: tuple[object, ...] = ()
    kwargs: tuple[tuple[str, object], ...] = ()

    def __repr__(self) -> str:
        inner = [show(value) for value in self.args] + [f"{key}={show(value)}" for key, value in self.kwargs]
        return f"{self.name}({', '.join(inner)})" if inner else self.name


def show(value: object) -> str:
    """A value in the grammar."""
    if isinstance(value, tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    return repr(value)


def parse(text: str) -> Call:
    """The call a text describes, or a `UsageError` that quotes it."""
    value = parse_value(text)
    if not isinstance(value, Call):
        raise UsageError(f"{text!r}: expected a name such as noise(sigma=0.001), found a plain value")
    return value


def parse_value(text: str) -> object:
    if len(text) > LONGEST:
        raise UsageError(f"a specification of {len(text)} characters: at most {LONGEST} are read; split it up")
    if _depth(text) > DEEPEST:
        raise UsageError(f"{text[:40]!r}...: nested deeper than {DEEPEST}; split it into several")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        raise UsageError(f"{text!r}: not a specification ({problem}); write for example prune(keep=0.01)") from None
    return _value(tree.body, text)


def _depth(text: str) -> int:
    deep = most = 0
    for character in text:
        deep += (character in "([{") - (character in ")]}")
        most = max(most, deep)
    return most


def _value(node: ast.expr, text: str) -> object:
    match node:
        case ast.Name(id=name):
            return Call(name)
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{text!r}: a number is too large")
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if value is not True:
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(_value(item, text) for item in items)
        case ast.BinOp(left=ast.Name() | ast.BinOp(), op=ast.Sub(), right=ast.Name() | ast.Call()):
            return _dashed(node, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = tuple((word.arg, _value(word.value, text)) for word in keywords if word.arg is not None)
            if len({key for key, _ in named}) != len(named):
                raise UsageError(f"{text!r}: an argument is given twice; keep one")
            if len(named) != len(keywords) or any(isinstance(item, ast.Starred) for item in args):
                raise UsageError(f"{text!r}: * and ** are not part of the grammar; name each argument")
            return Call(name, tuple(_value(item, text) for item in args), named)
    raise _refused(node, text)


def _dashed(node: ast.BinOp, text: str) -> Call:
    """`standard-v1`, perhaps with arguments: Python reads a difference, here it is one name."""
    first, last = _value(node.left, text), _value(node.right, text)
    plain = isinstance(first, Call) and not first.args and not first.kwargs
    if not (plain and isinstance(first, Call) and isinstance(last, Call)) or "-" in last.name:
        raise _refused(node, text)
    name = f"{first.name}-{last.name}"
    if not (ast.get_source_segment(text.strip(), node) or "").startswith(name):
        raise _refused(node, text)  # spaces around the dash: a difference was meant
    return Call(name, last.args, last.kwargs)


def _refused(node: ast.expr, text: str) -> UsageError:
    found = ast.get_source_segment(text.strip(), node) or text
    return UsageError(f"{found!r} in {text!r}: only names, calls, numbers, strings and lists; nothing is computed")


def is_name(text: str) -> bool:
    """Whether a text can stand as a bare name; dashes may join its parts, as in standard-v1."""
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("-"))


def sweep(call: Call) -> Iterator[Call]:
    """Every call that `sweep(a, b, ...)` anywhere inside stands for, in order."""
    if call.name == "sweep":
        raise UsageError(f"{call!r}: sweep stands for an argument, as in noise(sigma=sweep(0.001, 0.01))")
    keys = [None] * len(call.args) + [key for key, _ in call.kwargs]
    options = [_options(value) for value in (*call.args, *(value for _, value in call.kwargs))]
    for chosen in itertools.product(*options):
        args = tuple(value for key, value in zip(keys, chosen, strict=True) if key is None)
        kwargs = tuple((key, value) for key, value in zip(keys, chosen, strict=True) if key is not None)
        yield Call(call.name, args, kwargs)


def _options(value: object) -> list[object]:
    if not isinstance(value, Call):
        return [value]
    if value.name == "sweep":
        if not value.args or value.kwargs:
            raise UsageError(f"{value!r}: sweep takes the values to try, as in sweep(0.001, 0.01)")
        return list(value.args)
    found: list[object] = list(itertools.islice(sweep(value), MOST + 1))
    if len(found) > MOST:
        raise UsageError(f"{str(value)[:60]}...: stands for more than {MOST} calls; split the sweep up")
    return found
