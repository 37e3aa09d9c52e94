"""Add the hashes of every file of every locked version: python scripts/lock.py requirements.lock

Edit names and versions first. The hashes are those that PyPI lists; no package is downloaded.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

INDEX = "https://pypi.org/simple"


def read(lock: Path) -> list[Requirement]:
    lines = re.sub(r"\\\n", "", lock.read_text(encoding="utf-8")).splitlines()
    plain = [re.sub(r"--hash=\S+|#.*", "", line).strip() for line in lines]
    return [Requirement(line) for line in plain if line]


def version_of(need: Requirement) -> Version:
    (pin,) = need.specifier
    assert pin.operator == "==", f"{need.name} is not pinned"
    return Version(pin.version)


def hashes(need: Requirement) -> list[str]:
    """Of all wheels and source archives of the pinned version."""
    with urlopen(f"{INDEX}/{canonicalize_name(need.name)}/", timeout=60) as reply:
        page = reply.read().decode()
    files = re.findall(r'href="[^"#]*?([^"/#]+)#sha256=([0-9a-f]{64})', page)
    values = sorted({digest for file, digest in files if _version_in(unquote(file)) == version_of(need)})
    assert values, f"{INDEX} has no {need}"
    return values


def _version_in(file: str) -> Version | None:
    """None for old files with names of another form."""
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


def main() -> None:
    lock = Path(sys.argv[1])
    needs = sorted(read(lock), key=lambda need: canonicalize_name(need.name))
    with ThreadPoolExecutor(8) as pool:
        digests = list(pool.map(hashes, needs))
    comments = [line for line in lock.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#")]
    text = "".join(comments)
    for need, values in zip(needs, digests, strict=True):
        marker = f"; {need.marker}" if need.marker else ""
        text += f"{need.name}{need.specifier}{marker}" + "".join(f" \\\n    --hash=sha256:{v}" for v in values) + "\n"
    lock.write_text(text, encoding="utf-8")
    print(f"{len(needs)} packages, {sum(map(len, digests))} hashes")


if __name__ == "__main__":
    main()
