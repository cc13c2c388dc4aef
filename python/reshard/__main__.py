"""The program `reshard` that came with the package: python -m reshard COMMAND, and the script of that name."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def find() -> str | None:
    """The program beside the package: of a wheel, else of the build directory."""
    package = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(package, "bin", "reshard"), os.path.join(package, os.pardir, os.pardir, "reshard")]
    return next((place for place in places if os.access(place, os.X_OK) and os.path.isfile(place)), None)


def draw(plan: Any) -> str | None:
    """Draws the first entry of a plan; None where the program is missing, or has no words for it."""
    program, entry = find(), plan.entries[0] if plan.entries else None
    if program is None or entry is None:
        return None
    shape = "x".join(map(str, entry.src.shape)) or "scalar"
    command = [program, "plan", "--shape", shape, "--dtype", entry.dtype, "--src", str(entry.src), "--dst", str(entry.dst),
               "--ranks", str(entry.src.world), "--device", "cpu", "--svg", "-"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    return done.stdout if done.returncode == 0 else None


def main() -> None:
    program = find()
    if program is None:
        sys.exit("reshard: no program in the package, nor in the build directory")
    os.execv(program, ["reshard", *sys.argv[1:]])


if __name__ == "__main__":
    main()
