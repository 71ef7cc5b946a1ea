"""What an audit would do."""

from rich.table import Table

from gradleak.audit.plan import Audit, unmet
from gradleak.audit.utility import jobs


def plan_table(audit: Audit) -> Table:
    """Every cell with what it lacks and about what it costs; nothing is run to find out."""
    cells = audit.cells()
    table = Table(title=f"{audit.name}: {len(cells)} cells of {audit.trials} trials, at most {audit.budget} each",
                  title_justify="left", header_style="bold")
    for name in ("batch", "defense", "threat", "attack", "gradient evaluations", "lacks"):
        table.add_column(name, justify="right" if "evaluations" in name else "left", overflow="fold")
    for cell in cells:
        table.add_row(str(cell.batch), cell.defense, cell.threat, cell.attack,
                      f"{cell.evaluations * cell.trials:,}", ", ".join(unmet(cell)) or "-")
    total = sum(cell.evaluations * cell.trials for cell in cells)
    table.caption = f"{total:,} gradient evaluations of the client in all; a budget that runs out stops a cell cleanly"
    if trainings := len(jobs(audit)):
        table.caption += f"; then {trainings} trainings, one a defense and seed, to see what each costs"
    return table
