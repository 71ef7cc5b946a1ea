"""What the verbs of the command line take."""

from pathlib import Path
from typing import Annotated

import typer

RunDir = Annotated[Path, typer.Argument(help="A folder that `gradleak run` wrote.", show_default=False)]
AuditFile = Annotated[Path | None, typer.Argument(help="The audit, in TOML; none for the built-in quickstart.")]
AuditOrRun = Annotated[Path, typer.Argument(help="The audit, in TOML; or a run directory.", show_default=False)]
OutDir = Annotated[Path | None, typer.Option("--out", help="Run directory [default: runs/NAME-DIGEST].")]
Workers = Annotated[int, typer.Option(help="Processes, 0 for one a core.")]
ShowTruth = Annotated[bool, typer.Option(help="Put the private data into the report, beside what was recovered.")]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]

MaxLeak = Annotated[list[str], typer.Option(
    help="METRIC=NUMBER, the most any sample may leak; repeat for more [default: the metrics' own thresholds].")]
Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML here, one test a setting.")]

AttackSpec = Annotated[str, typer.Argument(help="As in an audit: dlg, ig(steps=500), ...", show_default=False)]
UpdateFile = Annotated[Path, typer.Option(help="The update: safetensors, one tensor a parameter name.")]
ModelSpec = Annotated[str, typer.Option(help="As in an audit: lenet, python('mine:build'), ...")]
ParamsFile = Annotated[Path | None, typer.Option(help="Weights the client was sent [default: the model's own].")]
Shape = Annotated[str, typer.Option(help="Of one example.")]
Classes = Annotated[int, typer.Option(min=2)]
Count = Annotated[int, typer.Option(min=1, help="Examples behind the update.")]
ClientSpec = Annotated[str, typer.Option(help="How the update was computed.")]
DefenseSpec = Annotated[str, typer.Option(help="What was done to it, as far as is known.")]
Recovered = Annotated[Path, typer.Option("--out", help="Folder for the recovered images.")]
Kind = Annotated[str, typer.Argument(help="attacks, defenses, metrics, models, data, clients, tasks")]
