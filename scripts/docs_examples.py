"""For the site: shows the examples at the end of a docstring as code; Markdown takes `>>>` for quotations."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

EXAMPLES = re.compile(r"^>>> .*\Z", re.MULTILINE | re.DOTALL)


def mark_examples(text: str) -> str:
    """The docstring with its examples in a section of their own."""
    return EXAMPLES.sub(lambda found: "Examples:\n" + textwrap.indent(found[0], "    "), text)


class Examples(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = mark_examples(obj.docstring.value)
