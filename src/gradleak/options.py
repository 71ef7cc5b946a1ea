"""What the verbs of the command line take."""

from pathlib import Path
from typing import Annotated

import typer

RunDir = Annotated[Path, typer.Argument(help="A folder that `gradleak run` wrote.", show_default=False)]
AuditFile = Annotated[Path | None, typer.Argument(help="The audit, in TOML; none for the built-in quickstart.")]
AuditOrRun = Annotated[Path, typer.Argument(help="The audit, in TOML; or a run directory.", show_default=False)]
OutDir = Annotated[Path | None, typer.Option("--out", help="Run directory [default: runs/NAME-DIGEST].")]
Workers = Annotated[int, typer.Option(help="Processes, 0 for one a core.")]
On = Annotated[str | None, typer.Option(help="Where: local, processes, ray, ray://HOST:PORT [default: processes].")]
Runs = Annotated[Path, typer.Argument(help="A folder of runs, or one run.")]
Port = Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65535)]
ShowTruth = Annotated[bool, typer.Option(help="Put the private data into the report, beside what was recovered.")]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]

MaxLeak = Annotated[list[str], typer.Option(
    help="METRIC=NUMBER, the most any sample may leak; repeat for more [default: the metrics' own thresholds].")]
Junit = Annotated[Path | None, typer.Option(help="Write JUnit XML here, one test a setting.")]

AttackSpec = Annotated[str, typer.Argument(help="As in an audit: dlg, ig(steps=500), ...", show_default=False)]
Update = Annotated[Path, typer.Option(help="A folder gradleak.capture wrote, or safetensors: a tensor a parameter.")]
UpdatePlace = Annotated[Path | None, typer.Argument(help="An update: say why it cannot be inverted as captured.")]
Captures = Annotated[Path, typer.Argument(help="A folder of captured updates.", show_default=False)]
Attacks = Annotated[list[str], typer.Option("--attack", help="As in an audit; repeat for more.")]
ModelSpec = Annotated[str | None, typer.Option(help="As in an audit: lenet, minilm, python('mine:build'), ...")]
ParamsFile = Annotated[Path | None, typer.Option(help="Weights the client was sent [default: the model's own].")]
Shape = Annotated[str | None, typer.Option(help="Of one image [default: 3,32,32].")]
Classes = Annotated[int | None, typer.Option(min=2, help="[default: 10]")]
Count = Annotated[int | None, typer.Option(min=1, help="Examples behind the update [default: 1].")]
ClientSpec = Annotated[str | None, typer.Option(help="How the update was computed [default: one_step].")]
DefenseSpec = Annotated[str | None, typer.Option(help="What was done to it, as far as is known [default: none].")]
Rate = Annotated[float | None, typer.Option(help="The client's learning rate, where weights were sent.")]
Recovered = Annotated[Path, typer.Option("--out", help="Folder for what is recovered.")]
Kind = Annotated[str, typer.Argument(help="attacks, defenses, metrics, models, data, clients, tasks")]
