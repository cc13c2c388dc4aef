#!/usr/bin/env python3
"""Keeps a measured report in the source tree: save.py DATA.json ROOT, or looks that it is kept: save.py --check ROOT

What was measured of a changed tree or on a busy machine is refused, and so are peers of another commit: tables and
plots are of one run. What the tree keeps is drawn again as it is.

profiles/results/report.json is what was measured, profiles/plots/ has the plots of it. A page that shows one,
![WORDS](.../plots/NAME.svg), says beside it what was found: these words are written, too.
"""
import json
import os
import re
import sys
import textwrap

import draw
import others

DATA, PLOTS, MOST_BYTES = "profiles/results/report.json", "profiles/plots", 60 << 10
PAGES = "README.md", "profiles/figures.md", "docs/profile.md"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]*plots/([a-z]+)\.svg)\)")


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def compact(data):
    """JSON with a line for each entry of each list and object at the top."""
    def lines(value):
        if isinstance(value, list):
            return "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value) + "\n]"
        return json.dumps(value, separators=(",", ":"))
    return "{\n" + ",\n".join(f"{json.dumps(name)}:{lines(value)}" for name, value in data.items()) + "\n}\n"


def with_findings(text, path, findings):
    """The page with what was found as the words of each plot."""
    def words(match):
        if match[3] not in findings:
            sys.exit(f"save: {path} shows {match[2]}, of which nothing was measured")
        return textwrap.fill(f"![{findings[match[3]]}]({match[2]})", 120, break_long_words=False, break_on_hyphens=False)
    return IMAGE.sub(words, text)


def kept(data, root):
    """All files as they have to be: [(path, text)]."""
    drawn = draw.plots(data)
    findings = {s.name: s.finding for s in draw.sections_of(data) if s.name in drawn}
    files = [(DATA, compact(data))] + [(f"{PLOTS}/{name}.svg", svg) for name, svg in drawn.items()]
    for name, svg in drawn.items():
        if len(svg.encode()) > MOST_BYTES:
            sys.exit(f"save: {name}.svg has {len(svg.encode())} bytes, more than {MOST_BYTES}")
    pages = [(path, read(os.path.join(root, path))) for path in PAGES]
    return files + [(path, with_findings(text, path, findings)) for path, text in pages if text]


def refusal(data):
    """Why a run is not to be kept; None: it is."""
    if data["quick"]:
        return "few, small cases were measured, to try the page: ./run report without --quick"
    commit, taken = data["environment"]["commit"], data["environment"].get("others")
    if commit.endswith(", changed") or commit == "unknown":
        return f"the tree was changed (commit {commit}): commit first, then ./run report"
    if taken is None or taken > others.BUSY:
        return (f"others took {'an unknown share' if taken is None else f'{100 * taken:.0f} %'} of the machine, more than "
                f"{100 * others.BUSY:.0f} %: ./run report on a quiet one")
    if data.get("left_out"):
        return f"there was no time for {', '.join(data['left_out'])}"
    run = data["peers_run"]
    if data["peers"] and not re.search(rf"commit {re.escape(commit)}(,|$)", run):
        return f"the peers are of another run ({run}) than the report (commit {commit}): ./run peers first"
    if "others took" in run and float(run.split("others took ")[1].split(" %")[0]) > 100 * others.BUSY:
        return f"the peers were measured on a busy machine ({run}): ./run peers on a quiet one"
    return None


def main():
    check = sys.argv[1:2] == ["--check"]
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root = sys.argv[2]
    data = json.loads(read(os.path.join(root, DATA) if check else sys.argv[1]) or "null")
    if data is None:
        sys.exit("save: nothing is measured")
    again = check or compact(data) == read(os.path.join(root, DATA))
    if not again and refusal(data):
        sys.exit(f"save: {refusal(data)}")
    faults = 0
    for path, text in kept(data, root):
        if check and read(os.path.join(root, path)) != text:
            print(f"save: {path} is not what {DATA} says: ./run report --draw --save")
            faults += 1
        elif not check:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            draw.write(os.path.join(root, path), text)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
