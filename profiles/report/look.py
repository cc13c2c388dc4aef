#!/usr/bin/env python3
"""Reads a page in a headless browser and tells what is wrong in its picture: look.py PAGE.html [--pictures DIRECTORY]

At phone and desktop width, dark and light: texts that overlap, texts cut by their picture or by the page, pages that
scroll sideways, text too small to read or too faint on what is behind it. Exit status 1: there is a fault; 77: there is
no browser. --pictures keeps a screenshot of each form.
"""
import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

WIDTHS = {"phone": 390, "desktop": 1280}
SCHEMES = {"light": 1, "dark": 0}  # values of Blink's preferredColorScheme
LEAST_PIXELS, LEAST_CONTRAST = 9, 4.5
# Reads each frame and writes its faults into the document.
SCRIPT = """
function parse(colour) {
  const n = colour.match(/[0-9.]+/g).map(Number)
  return {rgb: n.slice(0, 3), alpha: n.length > 3 ? n[3] : 1}
}
function over(top, below) { return below.map((c, i) => c + (top.rgb[i] - c) * top.alpha) }
function light(rgb) {
  const [r, g, b] = rgb.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}
function contrast(a, b) {
  const x = light(a), y = light(b)
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05)
}
function texts(page) { // leaves with words, in boxes of their letters
  const out = [], view = page.defaultView
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT)
  for (let node; (node = walk.nextNode());) {
    const parent = node.parentElement
    if (!node.data.trim() || parent.closest('title, style')) continue
    const range = page.createRange()
    range.selectNodeContents(node)
    const style = view.getComputedStyle(parent), inside = parent.closest('svg')
    for (const box of range.getClientRects())
      if (box.width > 0 && box.height > 0) {
        const scale = inside ? parent.getScreenCTM().a : 1, size = parseFloat(style.fontSize) * scale
        const middle = (box.top + box.bottom) / 2 // of the line; letters are lower than the box that has them
        out.push({words: node.data.trim(), parent, inside, style, size, left: box.left, right: box.right,
                  top: middle - 0.42 * size, bottom: middle + 0.42 * size})
      }
  }
  return out
}
function ground_of(text, page) { // the page's, with the filled rectangle that the text is on
  const view = page.defaultView
  let rgb = over(parse(view.getComputedStyle(page.body).backgroundColor), [255, 255, 255])
  if (!text.inside) return rgb
  for (const rect of text.inside.querySelectorAll('rect.fill')) {
    const b = rect.getBoundingClientRect(), x = (text.left + text.right) / 2, y = (text.top + text.bottom) / 2
    if (b.left <= x && x <= b.right && b.top <= y && y <= b.bottom) {
      const style = view.getComputedStyle(rect), fill = parse(style.fill)
      rgb = over({rgb: fill.rgb, alpha: fill.alpha * parseFloat(style.fillOpacity)}, rgb)
    }
  }
  return rgb
}
function look(page) {
  const faults = [], all = texts(page), width = page.documentElement.clientWidth
  if (page.documentElement.scrollWidth > width) faults.push('the page is wider than its window')
  for (const t of all) {
    const frame = t.inside ? t.inside.getBoundingClientRect() : {left: 0, right: width, top: 0, bottom: Infinity}
    if (t.left < frame.left - 1 || t.right > frame.right + 1 || t.top < frame.top - 1 || t.bottom > frame.bottom + 1)
      faults.push(`cut: "${t.words}"`)
    if (t.size < LEAST_PIXELS) faults.push(`small: "${t.words}" has ${t.size.toFixed(1)} pixels`)
    const ratio = contrast(parse(t.inside ? t.style.fill : t.style.color).rgb, ground_of(t, page))
    if (ratio < LEAST_CONTRAST) faults.push(`faint: "${t.words}" has a contrast of ${ratio.toFixed(2)}`)
  }
  for (let i = 0; i < all.length; i++)
    for (let j = i + 1; j < all.length; j++) {
      const a = all[i], b = all[j]
      if (a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5)
        faults.push(`overlap: "${a.words}" and "${b.words}"`)
    }
  return {texts: all.length, height: page.documentElement.scrollHeight, faults: faults.slice(0, 40),
          ground: page.defaultView.getComputedStyle(page.body).backgroundColor}
}
onload = () => {
  const found = {}
  for (const frame of document.querySelectorAll('iframe')) found[frame.name] = look(frame.contentDocument)
  document.querySelector('pre').textContent = JSON.stringify(found)
}
"""


def find_browser():
    names = (os.environ.get("RESHARD_BROWSER"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
             "microsoft-edge", "brave-browser")
    return next((path for path in (shutil.which(name) for name in names if name) if path), None)


def browse(browser, scheme, home, *arguments):
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               f"--user-data-dir={home}", "--disable-background-networking", "--no-first-run",
               f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": home}, timeout=600)
    except subprocess.TimeoutExpired:
        sys.exit(f"look: {browser} has not ended within 600 s")
    if done.returncode != 0:
        sys.exit(f"look: {browser} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def starts(browser, directory):
    try:
        return "<html" in browse(browser, next(iter(SCHEMES)), directory, "--dump-dom", "about:blank")
    except SystemExit as why:
        print(why)
        return False


def frames(page, forms):
    """A document that shows the page in windows of given sizes; a browser's own window has a least width."""
    return "".join(f'<iframe name="{name}" width="{width}" height="{height}" style="border:0;display:block" '
                   f'srcdoc="{html.escape(page)}"></iframe>' for name, (width, height) in forms.items())


def look(browser, page, scheme, directory):
    forms = {name: (width, 900) for name, width in WIDTHS.items()}
    script = f"const LEAST_PIXELS = {LEAST_PIXELS}, LEAST_CONTRAST = {LEAST_CONTRAST}\n{SCRIPT}"
    path = os.path.join(directory, "look.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"<!DOCTYPE html><meta charset='utf-8'><pre></pre>{frames(page, forms)}<script>{script}</script>")
    said = browse(browser, scheme, directory, "--dump-dom", "file://" + path)
    answer = re.search(r"<pre>(\{.*?\})</pre>", said, re.S)
    if not answer:
        sys.exit("look: the browser says nothing of the page")
    return json.loads(html.unescape(answer[1]))


def photograph(browser, page, scheme, form, height, directory, picture):
    path = os.path.join(directory, "frame.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"<!DOCTYPE html><meta charset='utf-8'><body style='margin:0'>"
                   f"{frames(page, {form: (WIDTHS[form], height)})}")
    browse(browser, scheme, directory, f"--window-size={max(500, WIDTHS[form])},{height}", "--screenshot=" + picture,
           "file://" + path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", help="without one: tells which browser would be taken")
    parser.add_argument("--pictures", metavar="DIRECTORY", help="keep a screenshot of each form")
    options = parser.parse_args()
    browser = find_browser()
    if browser is None:
        print("look: skipped, there is no chromium")
        return 77
    if options.page is None:
        print(browser)
        return 0
    with open(options.page, encoding="utf-8") as file:
        page = file.read()
    faults, grounds = [], set()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory: # processes of the browser end later
        if not starts(browser, directory):
            print(f"look: skipped, {browser} does not start")
            return 77
        for scheme in SCHEMES:
            for form, found in look(browser, page, scheme, directory).items():
                print(f"look: {form}, {scheme}: {found['texts']} texts, {found['height']} pixels high, "
                      f"{len(found['faults'])} faults")
                faults += [f"{form}, {scheme}: {fault}" for fault in found["faults"]]
                grounds.add((scheme, found["ground"]))
                if options.pictures:
                    os.makedirs(options.pictures, exist_ok=True)
                    photograph(browser, page, scheme, form, found["height"], directory,
                               os.path.join(os.path.abspath(options.pictures), f"{form}-{scheme}.png"))
    if len({ground for _, ground in grounds}) != len(SCHEMES):
        faults.append(f"dark and light have the same ground: {sorted(grounds)}")
    for fault in faults:
        print("look: " + fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
