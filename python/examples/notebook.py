"""A plan in a notebook: what 4 ranks of this process send each other, drawn.

python notebook.py [FILE.svg]

In a notebook the last line of a cell, `plan`, shows the drawing by itself; here it goes to a file, or is counted.
"""

from __future__ import annotations

import sys

import numpy as np

import reshard


def main() -> int:
    comm = reshard.local(4)
    rows, tiles = reshard.Layout("chunk(0)", (8, 6), 4), reshard.Layout("mesh(2x2;S0,S1)", (8, 6), 4)
    whole = np.arange(48.0).reshape(8, 6)
    moved = reshard.redistribute([whole[2 * r:2 * r + 2] for r in range(4)], rows, tiles, comm)
    plan = reshard.Plan(rows, tiles, "f64", 1)
    print(repr(rows), "->", repr(tiles))
    print(f"rank {plan.rank} sends {plan.info.sent_bytes} bytes, keeps {plan.info.self_copy_bytes}, to {plan.info.peers} ranks")
    drawing = plan._repr_svg_()
    if drawing is None:
        print(plan)  # without the program
    elif len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write(drawing)
    else:
        print(f"drawn in {len(drawing)} characters")
    wrong = sum(not np.array_equal(moved[r], whole[4 * (r // 2):4 * (r // 2) + 4, 3 * (r % 2):3 * (r % 2) + 3]) for r in range(4))
    print(f"{wrong} wrong")
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())
