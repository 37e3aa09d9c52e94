"""The package's build: compiles the native kernels into it where there is a C compiler, and does nothing otherwise."""

from __future__ import annotations

import re
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/headwise/engine/kernels/native"


class Kernels(BuildHookInterface[Any]):
    """For a wheel, and for an editable install, which finds the library beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the library of this source, and none of another."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / NATIVE
        build = runpy.run_path(str(folder / "library.py"))
        library, cc = folder / build["name_of"](), build["compiler"]()
        for other in folder.glob("*.so"):
            if other != library:
                other.unlink()
        if not library.exists() and (cc is None or not build["compile_to"](library, cc)):
            self.app.display_warning("no C compiler that makes the native kernels: everything will run on torch")
            return
        build_data["artifacts"].append(f"{NATIVE}/*.so")
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-{re.sub('[-.]', '_', sysconfig.get_platform())}"  # any Python, this kind of machine
        )
