#!/usr/bin/env python3
"""Checks that measured figures are those of committed results: check.py ROOT

tests/figures/rows names, for each row of the tables of profiles/figures.md, the rows of profiles/results/*.md that its
figures come from, in order. Of several results the newest that has the row counts. A figure has to be what was
measured, rounded to the digits that it is written with. In the text of figures.md so does each time, speed and
fraction. In README.md and figures.md a figure that is a link to a results file has to be in that file.
"""
import glob
import os
import re
import sys

ROOT = sys.argv[1]
sys.path.insert(0, os.path.join(ROOT, "profiles"))
from compare import numbers_of, read_rows, rows_of  # noqa: E402


def read_figures():
    """Text of figures.md, but for what ./run gpu --pages writes."""
    with open(os.path.join(ROOT, "profiles", "figures.md"), encoding="utf-8") as file:
        return re.sub(r"<!-- gpu -->.*?<!-- /gpu -->", "", file.read(), flags=re.DOTALL)


def read_results():
    """All rows, the newest last: names of results begin with their date."""
    rows = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "profiles", "results", "[0-9]*.md"))):
        for (label, on), cells in read_rows(path).items():
            rows[f"{label} @ {on}" if on else label] = (os.path.basename(path), cells)
    return rows


def read_sources():
    """[(start of a figure's label, [rows of results])]"""
    sources = []
    with open(os.path.join(ROOT, "tests", "figures", "rows"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("#") or not line.strip():
                continue
            if line.startswith(" "):
                sources[-1][1].append(line.strip())
            else:
                sources.append((line.rstrip("\n"), []))
    return sources


def faults_of_row(label, cells, names, results):
    figures = sum(map(numbers_of, cells), [])
    measured = []
    for name in names:
        if name not in results:
            yield f"'{label}': no results have the row '{name}'"
            return
        measured += [(number, results[name][0]) for cell in results[name][1] for number in numbers_of(cell)]
    if len(figures) != len(measured):
        yield f"'{label}' has {len(figures)} figures, and its results {len(measured)}"
    for figure, (number, file) in zip(figures, measured):
        if abs(figure.value - number.value) > figure.half * 1.001 + number.half * 0.001:
            yield f"'{label}': {figure.text} is {number.text} in {file}"


def faults_of_tables(results):
    figures = rows_of(read_figures())
    sources = [source for source in read_sources() if not source[0].startswith('"')]
    checked = 0
    for (label, _), cells in figures.items():
        found = [source for source in sources if label.startswith(source[0])]
        if len(found) != 1:
            yield f"'{label}': {len(found)} entries of tests/figures/rows begin so"
            continue
        sources.remove(found[0])
        checked += 1
        yield from faults_of_row(label, cells, found[0][1], results)
    for start, _ in sources:
        yield f"tests/figures/rows: no row of figures.md begins with '{start}'"
    print(f"figures: {checked} rows of figures.md beside {len(results)} of results")


def faults_of_text(results):
    """Of figures.md without tables, commands and links: each measured figure is in an entry that quotes the text."""
    lines = [line for line in read_figures().splitlines(True) if not line.startswith(("|", "    ", "#"))]
    text = re.sub(r"\s+", " ", re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", "".join(lines)))
    for start, names in read_sources():
        if start.startswith('"'):
            words = start.strip('"')
            if words not in text:
                yield f"tests/figures/rows: figures.md does not say {start}"
                continue
            text = text.replace(words, "...")
            yield from faults_of_row(words, [re.sub(r"\bfbc6d69\b", "", words)], names, results)
    for match in re.finditer(r"(?<![\w.,])\d[\d,]*(?:\.\d+| ?(?:ns|us|ms|s|GB/s|x|times)\b)", text):
        yield f"no entry of tests/figures/rows has '{text[max(0, match.start() - 20):match.end() + 10]}' of the text"


def faults_of_links():
    for page in "README.md", "profiles/figures.md":
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            text = file.read()
        for words, path in re.findall(r"\[([^\]]*)\]\((?:profiles/)?(results/[^)]*\.md)\)", text):
            if re.search(r"\d", words):
                with open(os.path.join(ROOT, "profiles", path), encoding="utf-8") as file:
                    if words not in file.read():
                        yield f"{page}: {words} is not in {path}"


def main():
    results = read_results()
    faults = [*faults_of_tables(results), *faults_of_text(results), *faults_of_links()]
    for fault in faults:
        print("figures: " + fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
