"""The command line: each verb calls one function."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradleak import __version__
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


RunDir = Annotated[Path, typer.Argument(help="A folder that `gradleak run` wrote.", show_default=False)]
ShowTruth = Annotated[bool, typer.Option(help="Put the private data into the report, beside what was recovered.")]
AuditFile = Annotated[Path | None, typer.Argument(help="The audit, in TOML; none for the built-in quickstart.")]


@app.command(epilog="Example: gradleak run audit.toml --out runs/mine --show-truth")
def run(
    audit: AuditFile = None,
    to: Annotated[Path | None, typer.Option("--out", help="Run directory [default: runs/NAME-DIGEST].")] = None,
    workers: Annotated[int, typer.Option(help="Processes, 0 for one a core.")] = 0,
    show_truth: ShowTruth = False,
) -> None:
    """Run an audit, or go on where it stopped; print the verdicts and write the report."""
    from gradleak.audit import drive
    from gradleak.audit.verdict import exit_code
    from gradleak.report import rows, terminal
    from gradleak.report.html import write

    try:
        done = drive.run(drive.load(audit), to, workers, err)
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    judged = rows.rows(done)
    terminal.print_rows(judged, out)
    out.print(f"report: {write(done, show_truth)}", highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(judged))


@app.command(epilog="Example: gradleak plan audit.toml")
def plan(audit: AuditFile = None) -> None:
    """Say what an audit would do, what it lacks and what it costs; run nothing."""
    from gradleak.audit import drive
    from gradleak.report.plan import plan_table

    out.print(plan_table(drive.load(audit)))


@app.command(epilog="Example: gradleak show runs/quickstart-1a2b3c4d --json")
def show(directory: RunDir, as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """Print a run's verdicts."""
    from gradleak.audit.store import open_run
    from gradleak.audit.verdict import exit_code
    from gradleak.report import rows, terminal

    if as_json:
        sys.stdout.write(json.dumps(rows.as_json(directory), indent=1) + "\n")
        return
    judged = rows.rows(open_run(directory))
    terminal.print_rows(judged, out)
    raise typer.Exit(exit_code(judged))


@app.command(epilog="Example: gradleak report runs/quickstart-1a2b3c4d --show-truth")
def report(
    directory: RunDir,
    show_truth: ShowTruth = False,
) -> None:
    """Write a run's report.html again."""
    from gradleak.audit.store import open_run
    from gradleak.report.html import write

    out.print(str(write(open_run(directory), show_truth)), highlight=False, soft_wrap=True)


@app.command(epilog="Example: gradleak compare runs/before runs/after")
def compare(before: RunDir, after: RunDir) -> None:
    """Put the rows two runs share side by side; exit 1 if any leaks more than before."""
    from gradleak.audit.store import open_run
    from gradleak.report import compare as side_by_side
    from gradleak.report import rows

    table, worse = side_by_side.table(rows.rows(open_run(before)), rows.rows(open_run(after)))
    out.print(table)
    raise typer.Exit(1 if worse else 0)


@app.command(epilog="Example: gradleak score runs/quickstart-1a2b3c4d")
def score(directory: RunDir) -> None:
    """Measure a run's stored guesses again, without attacking again."""
    from gradleak.audit.run import rescore
    from gradleak.audit.store import open_run
    from gradleak.report import rows, terminal

    done = open_run(directory)
    for cell, folder in done.cells():
        rescore(cell, folder)
    terminal.print_rows(rows.rows(done), out)


@app.command(epilog="Example: gradleak attack 'ig(steps=1000)' --update u.safetensors --model lenet --count 1")
def attack(
    attack: Annotated[str, typer.Argument(help="As in an audit: dlg, ig(steps=500), ...", show_default=False)],
    update: Annotated[Path, typer.Option(help="The update: safetensors, one tensor a parameter name.")],
    model: Annotated[str, typer.Option(help="As in an audit: lenet, python('mine:build'), ...")],
    params: Annotated[Path | None, typer.Option(help="Weights the client was sent [default: the model's own].")] = None,
    shape: Annotated[str, typer.Option(help="Of one example.")] = "3,32,32",
    classes: Annotated[int, typer.Option(min=2)] = 10,
    count: Annotated[int, typer.Option(min=1, help="Examples behind the update.")] = 1,
    client: Annotated[str, typer.Option(help="How the update was computed.")] = "one_step",
    defense: Annotated[str, typer.Option(help="What was done to it, as far as is known.")] = "none",
    seed: int = 0,
    to: Annotated[Path, typer.Option("--out", help="Folder for the recovered images.")] = Path("recovered"),
) -> None:
    """Attack an update captured elsewhere. There is no truth to compare with: judge by the residual and your eyes."""
    from gradleak.capture.files import attack_file

    attack_file(attack, update, model, params, shape, classes, count, client, defense, seed, to, out, err)


@app.command("list", epilog="Example: gradleak list defenses")
def list_names(
    kind: Annotated[str, typer.Argument(help="attacks, defenses, metrics, models, data, clients, tasks")] = "",
) -> None:
    """Everything that can be named in an audit, with what it means."""
    from gradleak.report.catalogue import catalogue

    out.print(catalogue(kind))


@app.command(epilog="Example: gradleak doctor")
def doctor() -> None:
    """Check this installation, and say what is missing for which part."""
    from gradleak.report.catalogue import diagnosis

    out.print(diagnosis())


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
