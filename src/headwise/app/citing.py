"""How a paper names and cites a method: from the first lines of the method's file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from .. import __version__
from ..report.tables import escape_tex
from ..settings.names import list_names
from .registry import read_card

HEADWISE = f"""@software{{headwise,
  title = {{{{Headwise: personalized federated learning, one good model per client}}}},
  author = {{{{The Headwise authors}}}},
  version = {{{__version__}}},
  year = {{2026}},
  license = {{Apache-2.0}},
}}
"""
FORM = "Name — Authors, *Title*, venue and year. https://address"
"""how the docstring of a method's file begins"""

ADDRESS = ":/?#[]@!$&'()*+,;=%~"
"""characters that stay unescaped in an address; BibTeX passes it to LaTeX's url command, which prints it"""
LARGEST = 1_000_000
"""bytes of a method's file that are read"""


def display_name(method: str) -> str:
    """A method's name in a paper, such as FedAH: its `title`, or what its docstring has before the dash.

    A method of your own sets ``title = "FedMine"``; without either, its name is that of its file.
    """
    name = method.partition("@")[0]
    docstring, title = _read_title(name)
    before, dash, _ = docstring.partition(" — ")
    return title or (before if dash else Path(name).stem if name.endswith(".py") else name)


def to_bibtex(method: str) -> str:
    """The entry of a method's paper; empty if it has none.

    Its docstring begins with ``Name — Authors, *Title*, venue and year. https://address``.
    """
    citation = _read_title(method.partition("@")[0])[0].partition(" — ")[2]
    address = re.search(r"https?://\S+", citation)
    text = citation.replace(address[0], "").strip() if address else citation
    parts = re.fullmatch(r"(.+?), \*(.+?)\*,? ?(.*)", text)
    if parts is None:
        return ""
    years = re.findall(r"\b(?:19|20)\d\d\b", text)
    fields = {
        "title": f"{{{_escape(parts[2])}}}",
        "author": _escape(re.sub(r" et al\.$", " and others", parts[1]).replace(", ", " and ")),
        "howpublished": _escape(re.sub(r"[\s,]*\b(19|20)\d\d\b.*", "", parts[3])),
        "year": years[-1] if years else "",
        "url": quote(address[0], safe=ADDRESS) if address else "",
    }
    lines = "".join(f"  {key} = {{{value}}},\n" for key, value in fields.items() if value)
    return f"@misc{{{citation_key(method)},\n{lines}}}\n"


def _escape(text: str) -> str:
    """For BibTeX, which counts braces even after a backslash."""
    return escape_tex(text).replace(r"\{", r"\textbraceleft{}").replace(r"\}", r"\textbraceright{}")


def _read_title(name: str) -> tuple[str, str]:
    """The first paragraph of a method's docstring, and its `title`; empty if the file is gone.

    A run may come from elsewhere and name any file: it is parsed, never imported.
    """
    if not name.endswith(".py"):
        card = read_card("method", name) if name in list_names("method") else None
        return (card.title, str(card.facts.get("title", ""))) if card else ("", "")
    file = Path(name)
    if not file.is_file() or file.stat().st_size > LARGEST:
        return "", ""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", ""
    titles = [
        str(node.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and "title" in {ast.unparse(n) for n in (node.targets if isinstance(node, ast.Assign) else [node.target])}
    ]
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split()), titles[0] if titles else ""


def citation_key(method: str) -> str:
    name = method.partition("@")[0]
    return re.sub(r"[^a-z0-9]", "", Path(name).stem.lower() if name.endswith(".py") else name)


def cite_methods(methods: Iterable[str]) -> str:
    """BibTeX of Headwise and of these methods' papers; a comment names each that has none."""
    return "\n".join([HEADWISE, *(to_bibtex(m) or _explain_absence(m) for m in dict.fromkeys(methods))])


def _explain_absence(method: str) -> str:
    name = " ".join(method.split())
    comment = f"% {display_name(method)} ({name}) cites no paper"
    if not method.partition("@")[0].endswith(".py"):
        return f"{comment}\n"
    if not Path(method.partition("@")[0]).is_file():
        return f"{comment}: the file no longer exists\n"
    return f'{comment}: the first line of its file must be """{FORM}"""\n'
