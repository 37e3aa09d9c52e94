"""Follow a page of the documentation word by word, as a reader would, with the Headwise that is installed elsewhere.

python scripts/follow.py docs/start.md VENV/bin    # a fresh venv with the wheel in it; runs in an empty folder
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "docs"))

from snippets import Block, commands, page, same

END = "-- end of block --"
DRIVER = f"""
import json, sys
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    exec(json.loads(line), names)
    print({END!r}, flush=True)
"""


class Reader:
    """Types what a page says into a shell and one Python, in a folder of its own."""

    def __init__(self, bin: Path, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
        self.env.pop("PYTHONPATH", None)
        words = [str(bin / "python"), "-c", DRIVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.python = subprocess.Popen(words, cwd=folder, env=self.env, text=True, **pipes)

    def do(self, block: Block) -> str | None:
        """What the block prints; None if it can't be typed."""
        if block.title:
            (self.folder / block.title).write_text(block.code, encoding="utf-8")
            return ""
        if block.language == "python":
            return self._python(block.code)
        return "".join(map(self._shell, commands(block))) if block.language == "sh" else None

    def _python(self, code: str) -> str:
        assert self.python.stdin is not None and self.python.stdout is not None
        self.python.stdin.write(json.dumps(code) + "\n")
        self.python.stdin.flush()
        said: list[str] = []
        for line in self.python.stdout:
            if line.strip() == END:
                return "".join(said)
            said.append(line)
        sys.exit(f"Python ended in this block:\n{code}")

    def _shell(self, words: list[str]) -> str:
        if words[0] in ("pip", "make"):  # what is followed is what was installed before
            return ""
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(words, cwd=self.folder, env=self.env, text=True, **both)
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout


def main(path: str, bin: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader, printed = Reader(Path(bin).absolute(), Path(folder)), ""
        for block in page(Path(path)).blocks:
            if block.language == "text" and block.runs:
                if not same(block.code, printed):
                    sys.exit(f"{path}:{block.line} shows\n{block.code}\nbut this was printed:\n{printed}")
                print(f"line {block.line}: as shown")
            elif block.runs and (said := reader.do(block)) is not None:
                printed = said
                print(f"line {block.line}: {block.language} done")
        assert reader.python.stdin is not None
        reader.python.stdin.close()
        reader.python.wait()
    print(f"{path} was followed to its end.")


if __name__ == "__main__":
    main(*sys.argv[1:])
