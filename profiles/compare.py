#!/usr/bin/env python3
"""Compares two runs of ./run bench, row by row: compare.py A.md B.md [--within 5] [--share 90]

Reads the tables that ./run bench prints and profiles/results/ has. Prints the rows that differ most, the share of rows
that agree within so many per cent, and the spread. Exit status 1: fewer agree than --share says. Says also how many
rows each run has settled: the samples agree within so many per cent, and what is beside them went at its full pace. A
machine that settles few rows was not quiet. What the machine itself has done - the straight copy, the pace of a core -
is no figure. Where both runs have the best pace of a core, times are compared in its steps.

    ./run bench >a.md; ./run bench >b.md; profiles/compare.py a.md b.md
"""
import argparse
import re
import statistics
import sys

SCALE = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = re.compile(r"(?<![\w.])([0-9][0-9,]*(?:\.[0-9]+)?)(?:e([+-]?[0-9]+))?(?: *(ns|us|ms|s)\b)?")


class Number:
    """A figure as it is written: times in seconds, and half a unit of its last digit."""

    def __init__(self, match, unit):
        digits, exponent, own = match.groups()
        factor = SCALE.get(own or unit, 1.0) * 10**int(exponent or 0)
        self.text = match[0].strip()
        self.value = float(digits.replace(",", "")) * factor
        self.is_time = (own or unit) in SCALE
        self.half = 0.5 * 10**-len(digits.partition(".")[2]) * factor


def numbers_of(cell):
    """The figures of a cell; '4 / 9 ns' has the unit of the last one in both. What is in brackets is beside it."""
    matches = list(NUMBER.finditer(re.sub(r"\(.*?\)", "", cell)))
    units = [match[3] for match in matches]
    for i in range(len(units) - 2, -1, -1):
        units[i] = units[i] or units[i + 1]
    return [Number(match, unit) for match, unit in zip(matches, units)]


def is_settled(cell, within):
    """True where the samples of a figure agree, as its brackets tell."""
    spread = re.search(r"\(([0-9.]+) %(,)?", cell)
    return not spread or (float(spread[1]) <= within and not spread[2])


def rows_of(text):
    """Rows of all tables: {(label, place or ''): cells behind it}. A later row replaces an earlier one of its name."""
    rows, head, parent = {}, [], ""
    for line in text.splitlines():
        if not line.startswith("|"):
            head = []
            continue
        raw = line.strip().strip("|").split("|")
        cells = [cell.strip() for cell in raw]
        if not head:
            head = cells
            continue
        if set(cells[0]) <= set("-: ") or not any(numbers_of(cell) for cell in cells[1:]):
            continue
        # A label that is set in belongs to the row before.
        label = f"{parent}: {cells[0]}" if raw[0].startswith("   ") else cells[0]
        parent = parent if raw[0].startswith("   ") else cells[0]
        on = cells[1] if head[1] == "on" else ""
        rows[label, on] = cells[head.index("goal") + 1 if "goal" in head else 1:]
    return rows


def take_yardsticks(rows):
    """Takes out the rows of what the machine has done. Returns the best pace of a core; 0 where there is none."""
    pace = 0.0
    for key in [key for key, cells in rows.items() if any("at the slowest" in cell for cell in cells)]:
        best = sum(map(numbers_of, rows.pop(key)), [])[0].value
        pace = best if key[0].startswith("a core") else pace
    return pace


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return rows_of(file.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--within", type=float, default=5, metavar="PERCENT", help="rows agree within this (default 5)")
    parser.add_argument("--share", type=float, default=90, metavar="PERCENT", help="so many have to (default 90)")
    options = parser.parse_args()
    a, b = read_rows(options.a), read_rows(options.b)
    paces = take_yardsticks(a), take_yardsticks(b)
    steps = paces if all(paces) else (1.0, 1.0)
    spreads = []
    for label, on in a.keys() & b.keys():
        settled = all(is_settled(cell, options.within) for cell in a[label, on] + b[label, on])
        for x, y in zip(sum(map(numbers_of, a[label, on]), []), sum(map(numbers_of, b[label, on]), [])):
            of_a, of_b = (n.value * (pace if n.is_time else 1) for n, pace in zip((x, y), steps))
            most = max(of_a, of_b)
            spread = 100 * abs(of_a - of_b) / most if most else 0.0
            spreads.append((spread, settled, f"{label} {on}".strip(), x.text, y.text))
    if not spreads:
        sys.exit("compare: the files have no row in common")
    spreads.sort(reverse=True)
    agree = sum(spread <= options.within for spread, *_ in spreads)
    for spread, settled, label, x, y in spreads:
        if spread > options.within:
            print(f"{spread:6.1f} %  {label}: {x}, {y}" + ("" if settled else "; not settled"))
    for path, rows in ((options.a, a), (options.b, b)):
        settled = sum(all(is_settled(cell, options.within) for cell in cells) for cells in rows.values())
        print(f"{path}: {settled} of {len(rows)} rows are settled within {options.within:g} %")
    quiet = [spread <= options.within for spread, settled, *_ in spreads if settled]
    if quiet:
        print(f"{sum(quiet)} of {len(quiet)} figures ({100 * sum(quiet) / len(quiet):.1f} %) that both have settled "
              f"agree within {options.within:g} %")
    alone = len(a.keys() ^ b.keys())
    share = 100 * agree / len(spreads)
    print(f"{agree} of {len(spreads)} figures ({share:.1f} %) agree within {options.within:g} %; spread: median "
          f"{statistics.median(s for s, *_ in spreads):.1f} %, largest {spreads[0][0]:.1f} %"
          + (f"; {alone} rows are in one run alone" if alone else ""))
    return 0 if share >= options.share else 1


if __name__ == "__main__":
    sys.exit(main())
