#!/usr/bin/env python3
"""Keeps a measured report in the source tree: save.py DATA.json ROOT, or looks that it is kept: save.py --check ROOT

profiles/results/report.json is what was measured, profiles/plots/ has the plots of it. A page that shows one,
![WORDS](.../plots/NAME.svg), says beside it what was found: these words are written, too.
"""
import json
import os
import re
import sys
import textwrap

import draw

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


def main():
    check = sys.argv[1:2] == ["--check"]
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root = sys.argv[2]
    data = json.loads(read(os.path.join(root, DATA) if check else sys.argv[1]) or "null")
    if data is None:
        sys.exit("save: nothing is measured")
    if data["quick"] and not check:
        sys.exit("save: few, small cases were measured, to try the page: ./run report without --quick")
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
