"""The grammar."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradleak import registry
from gradleak.errors import UsageError
from gradleak.spec import Call, is_name, parse, sweep

names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(is_name)
plain = st.one_of(st.integers(-10**9, 10**9), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12),
                  st.booleans(), st.none())
calls = st.recursive(
    st.builds(Call, names),
    lambda inner: st.builds(
        Call, names, st.lists(st.one_of(plain, inner), max_size=3).map(tuple),
        st.dictionaries(names, st.one_of(plain, inner, st.lists(plain, max_size=3).map(tuple)), max_size=3).map(
            lambda d: tuple(d.items()))),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # a busy machine is no failure
@given(calls)
def test_parse_undoes_repr(call: Call) -> None:
    assert parse(repr(call)) == call


@pytest.mark.parametrize("text", ["__import__('os').system('x')", "a.b", "a + b", "lambda: 1", "f(*x)", "f(**x)", "1",
                                  "", "f(", "[x for x in y]", "f(x := 1)", "'text'", "f(1e999)", "f(b'x')", "(" * 50,
                                  "f(" * 20 + ")" * 20, "x" * 3000, "-" * 1900 + "1", "f\x00"])
def test_nothing_is_computed(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_sweeps_are_crossed_in_order() -> None:
    found = [repr(c) for c in sweep(parse("chain(clip(norm=sweep(1, 2)), noise(sigma=sweep(0.1, 0.2)))"))]
    assert found == [f"chain(clip(norm={a}), noise(sigma={b}))" for a in (1, 2) for b in (0.1, 0.2)]


DEFENSES = ["none", "noise(sigma=0.1)", "noise(relative=2.0)", "noise(peak=0.5)", "clip(norm=1.0)", "sign",
            "prune(keep=0.1, by=layer)", "quantise(bits=3, stochastic=False)",
            "chain(clip(norm=1.0), noise(sigma=0.1))"]


@pytest.mark.parametrize("text", DEFENSES)
def test_objects_print_as_what_builds_them(text: str) -> None:
    made = registry.build("defense", parse(text))
    assert registry.build("defense", parse(repr(made))) == made


@pytest.mark.parametrize(("kind", "text", "says"), [
    ("attack", "dgl", "did you mean 'dlg'"),
    ("attack", "dlg(step=3)", "did you mean 'steps'"),
    ("attack", "dlg(steps=three)", "whole number"),
    ("attack", "dlg(1, 2, 3, 4, 5, 6, 7, 8)", "takes"),
    ("defense", "noise(sigma=-1)", "negative"),
    ("defense", "noise", "exactly one"),
    ("defense", "noise(sigma=1, relative=1)", "exactly one"),
    ("defense", "prune(keep=2)", "at most 1"),
    ("defense", "prune(keep=0.1, by=size)", "one of global, layer, random"),
    ("defense", "chain", "at least one"),
    ("defense", "chain(1)", "must be a defense"),
    ("defense", "clip(norm=0)", "above 0"),
    ("defense", "quantise(bits=1)", "use sign"),
    ("data", "photos(size=2)", "between 4"),
    ("client", "local_steps(steps=0)", "at least 1"),
])
def test_errors_name_the_value_and_the_remedy(kind: str, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.build(kind, parse(text))
