#!/usr/bin/env python3
"""Checks the pictures of a page without a browser: boxes.py PAGE.html|PICTURE.svg...

Widths of texts are those of a wide face, DejaVu Sans. No text may overlap another one, or reach beyond its picture.
Both widths of each picture are looked at, whichever of them a reader sees.
"""
import os
import re
import sys
import xml.etree.ElementTree as xml

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles", "report"))
from chart import text_width  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def box_of(text):
    size, kind = float(text.get("font-size")), text.get("class", "")
    bold = "bold" in kind or "series" in kind or text.get("font-weight") == "bold"
    width = text_width("".join(text.itertext()), size, bold)
    left = float(text.get("x")) - {"middle": width / 2, "end": width}.get(text.get("text-anchor"), 0)
    base = float(text.get("y"))
    return left, base - 0.76 * size, left + width, base + 0.24 * size


def faults_of(picture):
    x, y, width, height = map(float, picture.get("viewBox").split())
    upright = [text for text in picture.iter(SVG + "text") if not text.get("transform")]
    boxes = [("".join(text.itertext()), box_of(text)) for text in upright]
    for words, (left, top, right, bottom) in boxes:
        if left < x - 1 or top < y - 1 or right > x + width + 1 or bottom > y + height + 1:
            yield f'cut: "{words}"'
    for i, (words, a) in enumerate(boxes):
        for other, b in boxes[i + 1:]:
            if a[0] < b[2] - 0.5 and b[0] < a[2] - 0.5 and a[1] < b[3] - 0.5 and b[1] < a[3] - 0.5:
                yield f'overlap: "{words}" and "{other}"'


def main():
    faults = pictures = texts = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        if re.search(r"<script|<link|<img|@import|url\(|\bon[a-z]+=|(?:src|href)=", source):
            print(f"boxes: {path} is not self-contained")
            faults += 1
        root = xml.fromstring(source)
        for picture in root.iter(SVG + "svg"):
            pictures += 1
            texts += sum(1 for _ in picture.iter(SVG + "text"))
            for fault in faults_of(picture):
                print(f"boxes: {path}: {picture.findtext(SVG + 'title')} ({picture.get('class', '')}): {fault}")
                faults += 1
    print(f"boxes: {pictures} pictures with {texts} texts, {faults} faults")
    return 1 if faults or not pictures else 0


if __name__ == "__main__":
    sys.exit(main())
