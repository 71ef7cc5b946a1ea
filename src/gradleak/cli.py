"""The command line: each verb calls one function."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradleak import __version__
from gradleak import options as o
from gradleak.errors import GradleakError

app = typer.Typer(
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="markdown",
    help="How much of my training data can be read back out of the update I send?\n\n"
         "Exit codes: 0 held, 1 leaks, 2 usage, 3 inconclusive or unreliable.",
)
out, err = Console(), Console(stderr=True)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"gradleak {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@contextmanager
def going_on() -> Iterator[None]:
    """A run that is stopped by hand says so, and does not exit with 1, which means LEAKS."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None


@app.command(epilog="Example: gradleak run audit.toml --out runs/mine --show-truth")
def run(
    audit: o.AuditFile = None, to: o.OutDir = None, workers: o.Workers = 0, show_truth: o.ShowTruth = False,
    on: o.On = None,
) -> None:
    """Run an audit, or go on where it stopped; print the verdicts and write the report."""
    from gradleak.audit import drive
    from gradleak.audit.verdict import exit_code
    from gradleak.report import economics, rows, terminal
    from gradleak.report.html import write

    with going_on():
        done = drive.run(drive.load(audit), to, workers, err, on)
    judged = rows.rows(done)
    terminal.print_rows(judged, out)
    economics.print_economics(done, judged, out)
    out.print(f"report: {write(done, show_truth)}", highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(judged))


@app.command(epilog="Example: gradleak check audit.toml --max-leak rougeL=0.2 --junit gradleak.xml")
def check(
    audit: o.AuditOrRun, max_leak: o.MaxLeak = [], junit: o.Junit = None, to: o.OutDir = None,  # noqa: B006
    workers: o.Workers = 0,
) -> None:
    """Gate a build: run an audit, or go on, and fail if it leaks more than allowed. Annotates on GitHub by itself."""
    from gradleak.report.check import check

    with going_on():
        raise typer.Exit(check(audit, max_leak, junit, to, workers, out, err))


@app.command(epilog="Example: gradleak plan audit.toml")
def plan(audit: o.AuditFile = None) -> None:
    """Say what an audit would do, what it lacks and what it costs; run nothing."""
    from gradleak.audit import drive
    from gradleak.report.plan import plan_table

    out.print(plan_table(drive.load(audit)))


@app.command(epilog="Example: gradleak show runs/quickstart-1a2b3c4d --json")
def show(directory: o.RunDir, as_json: o.AsJson = False) -> None:
    """Print a run's verdicts."""
    from gradleak.audit.store import open_run
    from gradleak.audit.verdict import exit_code
    from gradleak.report import economics, rows, terminal

    if as_json:
        sys.stdout.write(json.dumps(rows.as_json(directory), indent=1) + "\n")
        return
    judged = rows.rows(done := open_run(directory))
    terminal.print_rows(judged, out)
    economics.print_economics(done, judged, out)
    raise typer.Exit(exit_code(judged))


@app.command(epilog="Example: gradleak report runs/quickstart-1a2b3c4d --show-truth")
def report(directory: o.RunDir, show_truth: o.ShowTruth = False) -> None:
    """Write a run's report.html again."""
    from gradleak.audit.store import open_run
    from gradleak.report.html import write

    out.print(str(write(open_run(directory), show_truth)), highlight=False, soft_wrap=True)


@app.command(epilog="Example: gradleak view runs")
def view(directory: o.Runs = Path("runs"), port: o.Port = 8765) -> None:
    """Serve a folder of runs in the browser, to this machine only, with progress while they go on."""
    from gradleak.report.view import view

    view(directory, port, lambda text: out.print(text, highlight=False))


@app.command(epilog="Example: gradleak compare runs/before runs/after")
def compare(before: o.RunDir, after: o.RunDir) -> None:
    """Put two runs side by side; exit 1 if any row leaks more than before, 3 if one that held is no longer shown to."""
    from gradleak.report.compare import compare

    raise typer.Exit(compare(before, after, out))


@app.command(epilog="Example: gradleak score runs/quickstart-1a2b3c4d")
def score(directory: o.RunDir) -> None:
    """Measure a run's stored guesses again, without attacking again."""
    from gradleak.report import rows, terminal

    terminal.print_rows(rows.rescored(directory), out)


@app.command(epilog="Example: gradleak attack 'ig(steps=1000)' --update u.safetensors --model lenet --count 1")
def attack(
    attack: o.AttackSpec, update: o.Update, model: o.ModelSpec = None, params: o.ParamsFile = None,
    shape: o.Shape = None, classes: o.Classes = None, count: o.Count = None, client: o.ClientSpec = None,
    defense: o.DefenseSpec = None, rate: o.Rate = None, seed: int = 0, to: o.Recovered = Path("recovered"),
) -> None:
    """Attack an update captured elsewhere. There is no truth to compare with: judge by the residual and your eyes."""
    from gradleak.capture.files import Said
    from gradleak.capture.recover import attack_file

    attack_file(attack, update, Said(model, params, shape, classes, count, client, defense, rate, seed), to, out, err)


@app.command(epilog="Example: gradleak audit captures --model minilm")
def audit(
    folder: o.Captures, attacks: o.Attacks = [], model: o.ModelSpec = None, params: o.ParamsFile = None,  # noqa: B006
    shape: o.Shape = None, classes: o.Classes = None, count: o.Count = None, client: o.ClientSpec = None,
    defense: o.DefenseSpec = None, rate: o.Rate = None, seed: int = 0, to: o.Recovered = Path("recovered"),
) -> None:
    """Attack every captured update in a folder; exit 1 if any is explained, 3 if none is."""
    from gradleak.capture.audit import audit
    from gradleak.capture.files import Said

    said = Said(model, params, shape, classes, count, client, defense, rate, seed)
    raise typer.Exit(audit(folder, attacks, said, to, out, err))


@app.command("list", epilog="Example: gradleak list defenses")
def list_names(kind: o.Kind = "") -> None:
    """Everything that can be named in an audit, with what it means."""
    from gradleak.report.catalogue import catalogue

    out.print(catalogue(kind))


@app.command(epilog="Example: gradleak doctor captures/round-1/client-7")
def doctor(
    update: o.UpdatePlace = None, model: o.ModelSpec = None, params: o.ParamsFile = None, shape: o.Shape = None,
    classes: o.Classes = None, count: o.Count = None, client: o.ClientSpec = None, defense: o.DefenseSpec = None,
    rate: o.Rate = None,
) -> None:
    """Check this installation; or say why an update cannot be inverted as captured (exit 3), and what to set."""
    from gradleak.report.doctor import doctor

    raise typer.Exit(doctor(update, (model, params, shape, classes, count, client, defense, rate), out))


def main() -> None:
    """Errors meant for the user are one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except GradleakError as problem:
        err.print(f"error: {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except Exception:  # noqa: BLE001  an error nobody foresaw must not exit with 1, which means LEAKS
        err.print_exception()
        sys.exit(70)


if __name__ == "__main__":
    main()
