"""A folder of runs in the browser, on this machine only: the same pages, written anew while runs go on."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from jinja2 import Environment

from gradleak.audit.store import open_run
from gradleak.errors import GradleakError, UsageError
from gradleak.report.html import page

HOSTS = ("127.0.0.1", "localhost", "[::1]")
EVERY = 5
"""Seconds after which a page of a run that is under way is asked for again."""

INDEX = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gradleak: runs</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}td,th{text-align:left;
padding:.2rem 1rem .2rem 0}:root{color-scheme:light dark}</style></head><body><main><h1>Runs</h1>
<table><thead><tr><th scope="col">Run</th><th scope="col">Cells finished</th></tr></thead><tbody>
{% for name, address, told in runs %}<tr><td><a href="{{ address }}">{{ name }}</a></td><td>{{ told }}</td></tr>
{% else %}<tr><td colspan="2">none yet</td></tr>{% endfor %}</tbody></table></main></body></html>"""

Answer = tuple[int, str, bool]
"""Status, page, and whether to ask again soon."""


def runs(folder: Path) -> dict[str, Path]:
    """The folder itself if it is a run, and every run right inside."""
    found = {path.name: path for path in sorted(folder.iterdir()) if (path / "plan.json").is_file()}
    return {folder.name: folder, **found} if (folder / "plan.json").is_file() else found


def _progress(path: Path) -> tuple[int, int]:
    cells = [place.done for _, place in open_run(path).cells()]
    return sum(cells), len(cells)


def _told(path: Path) -> str:
    try:
        done, whole = _progress(path)
    except GradleakError as problem:
        return str(problem)
    return f"{done} of {whole}"


def answer(folder: Path, path: str) -> Answer:
    """Addresses are names of runs, looked up, never paths."""
    there = runs(folder)
    if path == "/":
        told = [(name, f"/{quote(name, safe='')}", _told(place)) for name, place in there.items()]
        return 200, Environment(autoescape=True).from_string(INDEX).render(runs=told), True
    name = unquote(path.removeprefix("/").partition("?")[0])
    if name not in there:
        return 404, "no such run", False
    try:
        done, whole = _progress(there[name])
        return 200, page(open_run(there[name])), done < whole
    except GradleakError as problem:
        return 500, str(problem), False


class Pages(BaseHTTPRequestHandler):
    """Answers GET alone, and only to those who mean this machine: a page elsewhere cannot reach it by another name."""

    folder: Path

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in HOSTS:
            status, text, again = 403, "this server answers to 127.0.0.1 only", False
        else:
            status, text, again = answer(self.folder, self.path)
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"text/{'html' if status == 200 else 'plain'}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if again:
            self.send_header("Refresh", str(EVERY))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody needs to read of every page."""


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give one that holds runs, such as runs/")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), type("Here", (Pages,), {"folder": folder.absolute()}))
    except OSError as problem:
        raise UsageError(f"--port {port}: {problem.strerror}; choose another, or 0 for any that is free") from None


def view(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve until stopped by hand."""
    with server(folder, port) as here:
        say(f"http://127.0.0.1:{here.server_address[1]}/   (this machine only; Ctrl-C stops it)")
        try:
            here.serve_forever()
        except KeyboardInterrupt:
            say("stopped")
