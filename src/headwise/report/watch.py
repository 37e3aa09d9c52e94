"""A local web page that follows runs while they train; it only reads their folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ..disk.files import checksum
from ..disk.jsontext import to_json
from ..disk.paths import input_folder
from ..errors import HeadwiseError, RunError
from ..log.metrics import ACCURACY
from ..runs.query import Run, find_runs
from .data import page_data
from .page import Live, fill_template, render, render_sections
from .results import Setting, collect

HOSTS = ["127.0.0.1", "localhost", "[::1]"]
"""names of this machine alone: any other may be a web page's attempt at DNS rebinding"""
FILES = ("manifest.json", "rounds.jsonl", "clients.jsonl", "diagnostics.jsonl", "result.json")


def watch_app(root: Path) -> Starlette:
    home = root.resolve()

    def folder_of(request: Request) -> Path:
        """The requested folder; 404 for anything outside `root`."""
        try:
            folder = input_folder(home / request.path_params["path"], "path").resolve()
        except HeadwiseError as error:
            raise HTTPException(404, str(error)) from error
        if not folder.is_relative_to(home) or not folder.is_dir():
            raise HTTPException(404, "There is no such run.")
        return folder

    def index(request: Request) -> Response:
        return HTMLResponse(fill_template("list.html.j2", root=str(root), rows=list(_rows(home))))

    def show(request: Request) -> Response:
        folder = folder_of(request)
        live = Live(f"/news/{request.path_params['path']}", _version(folder))
        try:
            damaged: list[str] = []
            return HTMLResponse(render(collect([folder], damaged), live, damaged))
        except RunError as error:
            raise HTTPException(404, str(error)) from error

    def news(request: Request) -> Response:
        folder = folder_of(request)
        version = _version(folder)
        try:
            settings = collect([folder], [])
            answer: dict[str, Any] = {"version": version, "status": _status(settings), "shape": _shape(settings)}
            if request.query_params.get("since") != version:
                answer |= {"data": page_data(settings), "sections": render_sections(settings)}
        except RunError as error:  # the folder is just being created, or was removed
            answer = {"version": "", "status": str(error)}
        return Response(to_json(answer), headers={"Cache-Control": "no-store"}, media_type="application/json")

    routes = [Route("/", index), Route("/show/{path:path}", show), Route("/news/{path:path}", news)]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)])


def _rows(home: Path) -> Iterator[dict[str, Any]]:
    """A row for each folder of several runs, then one for each run; for an unreadable run, the reason."""
    runs = find_runs(home)
    folders = sorted({run.path.parent for run in runs if run.path != home and run.path.parent != home})
    for folder in folders:
        inside = sum(run.path.parent == folder for run in runs)
        yield {"path": folder.relative_to(home).as_posix(), "cells": [f"{inside} runs together", "", "", "", ""]}
    for run in runs:
        path = run.path.relative_to(home).as_posix()
        try:
            yield {"path": path, "cells": _cells(run)}
        except RunError as error:
            yield {"path": path, "cells": [f"can't be read: {error}", "", "", "", ""]}


def _cells(run: Run) -> list[str]:
    s = run.summary()
    last = next((run.metric.form(a["last"]) for a in s[s["metric"]].values()), "")
    last = last and (last if run.metric is ACCURACY else f"{last} ({run.metric.label})")
    rounds = f"{s['rounds']} of {run.manifest['experiment']['rounds']}"
    return [s["method"], s["data"], rounds, last, run.ended]


def _status(settings: list[Setting]) -> str:
    runs = [run for s in settings for line in s.lines for run in line.runs]
    rounds = sum(s["rounds"] for setting in settings for line in setting.lines for s in line.summaries)
    ended = sum(run.ended != "unfinished" for run in runs)
    return f"{rounds} rounds so far; {ended} of {len(runs)} runs ended"


def _shape(settings: list[Setting]) -> list[list[Any]]:
    """Which runs there are: when this changes, the page reloads."""
    return [[s.title, [[line.name, len(line.runs)] for line in s.lines]] for s in settings]


def _version(folder: Path) -> str:
    """Changes whenever a file of a run below the folder changes."""
    known: list[str] = []
    for run in find_runs(folder):
        for name in FILES:
            with suppress(OSError):  # it does not exist, or no longer
                status = (run.path / name).stat()
                known.append(f"{run.path / name} {status.st_size} {status.st_mtime_ns}")
    return str(checksum("\n".join(known).encode()))
