"""What a page of the documentation shows: its blocks, and what its `test:` comments say about them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PIECE = re.compile(
    r"^(?P<indent>\ *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```\ *$"
    r"|^<!--\ test:(?P<comment>.*?)-->"
    r"|(?P<plain>(?:^\ {4}headwise\ [^\n]*(?:\n|\Z))+)",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
ELSEWHERE = {
    "flower.md": "tests/sites/test_flower_page.py",
    "models-out.md": "tests/exports/test_models_out_page.py",
    "own-data.md": "tests/app/test_fit_docs.py",
    "tutorials/four-sites.md": "tests/sites/test_four_sites_page.py",
}
"""pages whose blocks a test of their own runs, since it needs servers or given data"""


@dataclass(frozen=True)
class Block:
    """One fenced block, or one stretch of indented `headwise` lines."""

    language: str
    code: str
    line: int
    """of its first line of code in the page, counted from 1"""
    title: str
    """the file that it is written to; empty if it is none"""
    runs: bool
    """False below a comment `not run`"""


@dataclass(frozen=True)
class Page:
    path: Path
    blocks: tuple[Block, ...]
    runs: bool
    """whether its commands are run, and not only parsed"""
    long: bool

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix().removeprefix("docs/")


def page(path: Path) -> Page:
    return parse(path, path.read_text(encoding="utf-8"))


def parse(path: Path, text: str) -> Page:
    blocks: list[Block] = []
    words: set[str] = set()
    runs = True
    for found in PIECE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if (comment := found["comment"]) is not None:
            kind, _, rest = (comment.strip() + "\n").partition("\n")
            runs = not kind.startswith("not run")
            if kind == "setup":
                blocks.append(Block("python", rest, line + 1, "", True))
            elif runs:
                words |= {word.strip() for word in kind.split(",")}
            else:
                assert kind.partition(",")[2].strip(), f"{path}:{line} does not say why a block is not run"
        elif (plain := found["plain"]) is not None:
            blocks.append(Block("sh", re.sub(r"^ {4}", "", plain, flags=re.MULTILINE), line, "", True))
        else:
            code = re.sub(f"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
            title = re.search(r'title="([^"]+)"', found["options"])
            blocks.append(Block(found["language"], code, line + 1, title[1] if title else "", runs))
            runs = True
    assert words <= {"run", "long"}, f"{path} has a comment 'test: {', '.join(words)}'"
    return Page(path, tuple(blocks), "run" in words, "long" in words)


def commands(block: Block) -> Iterator[list[str]]:
    """The lines of a block in sh as words, without comments; a backslash continues a line."""
    for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
        if words := shlex.split(line.removeprefix("$ "), comments=True):
            yield words


def same(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed.

    Line ends and spaces don't count; `...` stands for anything. Decimal fractions may differ by 5 % or 0.05, since the
    last bits of training, and with them a sample's class, depend on the kind of CPU.
    """
    words = printed.split()
    parts = [part.split() for part in re.split(r"(?:^|\s)\.\.\.(?=\s|$)", shown)]
    first, *rest = parts
    if not _alike(first, words[: len(first)]) or (not rest and len(words) != len(first)):
        return False
    at = len(first)
    for k, part in enumerate(rest):
        places = range(at, len(words) - len(part) + 1)
        if k == len(rest) - 1:  # the end of what was printed
            places = places[-1:]
        at = next((p + len(part) for p in places if _alike(part, words[p : p + len(part)])), -1)
        if at < 0:
            return False
    return True


def _alike(shown: list[str], printed: list[str]) -> bool:
    return len(shown) == len(printed) and all(map(_same_word, shown, printed))


def _same_word(shown: str, printed: str) -> bool:
    fraction = r"\d+\.\d+"
    if re.split(fraction, shown) != re.split(fraction, printed):
        return False
    pairs = zip(re.findall(fraction, shown), re.findall(fraction, printed), strict=True)
    return all(abs(float(a) - float(b)) <= 0.05 * max(1.0, abs(float(a))) for a, b in pairs)
