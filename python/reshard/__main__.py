"""The program `reshard` that came with the package: python -m reshard COMMAND, and the script of that name."""

from __future__ import annotations

import os
import sys


def program() -> str:
    """The program beside the package: of a wheel, else of the build directory."""
    package = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(package, "bin", "reshard"), os.path.join(package, os.pardir, os.pardir, "reshard")]
    for place in places:
        if os.access(place, os.X_OK) and os.path.isfile(place):
            return place
    sys.exit(f"reshard: no program in {' or '.join(places)}")


def main() -> None:
    os.execv(program(), ["reshard", *sys.argv[1:]])


if __name__ == "__main__":
    main()
