"""Charts as SVG: one set of axes, units, colours and type for all figures of the report.

Colours are CSS variables with a value for a light and one for a dark ground. They differ in lightness as well as in
hue, each series has a marker of its own, and each is named where it ends, so that no legend has to be matched by
colour. A chart is drawn for a width in pixels: wide and narrow forms are drawn apart, and text has its true size.
"""
import math
from xml.sax.saxutils import escape

LIGHT = {"ground": "#fcfcfa", "ink": "#1b1f24", "soft": "#59626c", "line": "#e3e5e3", "axis": "#9aa2aa", "first": "#084c8a",
         "second": "#a8480a", "third": "#1a7a5e", "copy": "#5c656e", "kept": "#c9ced3"}
DARK = {"ground": "#14171a", "ink": "#e8eaec", "soft": "#a3adb7", "line": "#2a2f34", "axis": "#69727b", "first": "#74b9ff",
        "second": "#f2a65e", "third": "#5fd0ac", "copy": "#a8b1ba", "kept": "#434a51"}
KINDS = "first", "second", "third", "copy", "kept"
# Colours of all that is drawn: (selector, property, colour).
PAINTS = ([("svg text", "fill", "ink"), ("svg .soft", "fill", "soft"), ("svg .over", "fill", "ground"),
           ("svg .ground", "fill", "ground"), ("svg .grid", "stroke", "line"), ("svg .axis", "stroke", "axis"),
           ("svg .mark", "stroke", "ground")] +
          [(f"svg {shape}.{kind}", paint, kind) for kind in KINDS
           for shape, paint in (("text", "fill"), (".mark", "fill"), (".fill", "fill"), (".curve", "stroke"))])
# Colours of the light ground stand first, as they are: renderers other than browsers know no variables and skip @supports.
STYLE = f"""
svg text{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}}
svg .bold,svg text.series{{font-weight:600}}svg .grid,svg .axis,svg .mark{{stroke-width:1}}
svg .curve{{fill:none;stroke-width:2;stroke-linejoin:round}}svg .copy.curve{{stroke-dasharray:5 4}}
{"".join(f"{where}{{{paint}:{LIGHT[colour]}}}" for where, paint, colour in PAINTS)}
@supports(fill:var(--ink)){{
:root{{color-scheme:light dark;{";".join(f"--{name}:{colour}" for name, colour in LIGHT.items())}}}
@media(prefers-color-scheme:dark){{:root{{{";".join(f"--{name}:{colour}" for name, colour in DARK.items())}}}}}
{"".join(f"{where}{{{paint}:var(--{colour})}}" for where, paint, colour in PAINTS)}
}}
"""
SMALL, NORMAL = 11.5, 12.5
# Advance widths of DejaVu Sans Bold in hundredths of an em, ASCII from the space on: a wide face, so that a text that
# fits by them fits in the reader's.
ADVANCE = [int(w) for w in (
    "35 46 52 84 70 100 87 31 46 46 52 84 38 42 38 37 70 70 70 70 70 70 70 70 70 70 40 40 84 84 84 58 100 77 76 73 83 "
    "68 68 82 84 37 37 77 64 100 84 85 73 85 77 72 68 81 77 110 77 72 73 46 37 46 84 50 50 67 72 59 72 68 44 72 71 34 "
    "34 67 34 104 71 69 72 72 49 60 48 71 65 92 65 65 58 71 37 71 84").split()]
# DejaVu Sans itself is narrower by about a tenth.
REGULAR = 0.91


def text_width(words, size, bold=False):
    ems = sum(ADVANCE[ord(c) - 32] if 32 <= ord(c) < 127 else 84 for c in words) / 100
    return ems * size * (1 if bold else REGULAR)


def lines_of(words, size, width):
    """The words in as many lines as they need."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def bytes_text(n):
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if n < 1024 or unit == "TiB":
            return f"{n:.3g} {unit}"
        n /= 1024
    return ""


def time_text(us):
    return f"{us:.3g} µs" if us < 1000 else f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


class Linear:
    """From 0 to a round number that takes in all values."""

    def __init__(self, most, ticks=5):
        step = 10**math.floor(math.log10(most / ticks))
        self.step = next(step * k for k in (1, 2, 5, 10) if most / (step * k) <= ticks)
        self.end = self.step * math.ceil(most / self.step - 1e-9)
        self.ticks = [self.step * i for i in range(round(self.end / self.step) + 1)]

    def share(self, value):
        return value / self.end


class Log:
    """From the least to the largest value; ticks are powers of a base, as many as have room."""

    def __init__(self, values, base, most_ticks=8):
        self.low, self.high = min(values), max(values)
        power = math.ceil(math.log(self.low, base) - 1e-9)
        all_ticks = []
        while base**power <= self.high * (1 + 1e-9):
            all_ticks.append(base**power)
            power += 1
        all_ticks = all_ticks or [self.low]  # all values lie between two powers
        self.ticks = all_ticks[::max(1, math.ceil(len(all_ticks) / most_ticks))]

    def share(self, value):
        return math.log(value / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5


class Picture:
    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def text(self, x, y, words, size=SMALL, anchor="start", kind=""):
        kind = f' class="{kind}"' if kind else ""
        anchor = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{anchor}{kind}>{escape(words)}</text>')

    def line(self, x1, y1, x2, y2, kind):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def curve(self, points, kind):
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{at}" class="curve {kind}"/>')

    def rectangle(self, x, y, width, height, kind, opacity=1, hint=""):
        opacity = f' fill-opacity="{opacity:.2g}"' if opacity < 1 else ""
        hint = f"<title>{escape(hint)}</title>" if hint else ""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                          f'class="fill {kind}"{opacity}>{hint}</rect>')

    def mark(self, x, y, kind, hint=""):
        r = 4.2
        shapes = {
            "first": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"',
            "second": f'<rect x="{x - 3.8:.1f}" y="{y - 3.8:.1f}" width="7.6" height="7.6"',
            "third": f'<path d="M{x:.1f} {y - 5.2:.1f}l5.2 5.2l-5.2 5.2l-5.2 -5.2z"',
            "copy": f'<path d="M{x - 4.6:.1f} {y + 3.6:.1f}h9.2l-4.6 -8z"',
        }
        hint = f"<title>{escape(hint)}</title>" if hint else ""
        self.parts.append(f'{shapes[kind]} class="mark {kind}">{hint}</{shapes[kind][1:].split()[0]}>')

    def svg(self, kind="", alone=False):
        """alone: a file of its own, with its style, a ground and a margin."""
        margin = 16 if alone else 0
        width, height = self.width + 2 * margin, self.height + 2 * margin
        form = f' class="{kind}"' if kind else ""
        style = ""
        if alone:
            form += f' width="{width:g}" height="{height:g}"'
            style = (f'<style>{STYLE}</style>\n<rect x="{-margin}" y="{-margin}" width="100%" height="100%" '
                     'class="ground"/>\n')
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-margin} {width:g} {height:g}" role="img"'
        return f"{head}{form}>\n<title>{escape(self.title)}</title>\n{style}" + "\n".join(self.parts) + "\n</svg>\n"


def spread(wanted, gap, low, high):
    """Places of labels near those wanted, `gap` apart, within [low, high]."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    at = [0.0] * len(wanted)
    last = low - gap
    for i in order:
        last = at[i] = max(wanted[i], last + gap)
    last = high + gap
    for i in reversed(order):
        last = at[i] = min(at[i], last - gap)
    return at


def evenly(labels):
    """Every k-th of the labels (place, words), with the least k at which they stand apart."""
    for k in range(1, len(labels) + 1):
        chosen = labels[::k]
        ends = [(at - text_width(words, SMALL) / 2, at + text_width(words, SMALL) / 2) for at, words in chosen]
        if all(a[1] + 8 <= b[0] for a, b in zip(ends, ends[1:])):
            return chosen
    return []


def lines(width, title, series, x, y, x_text, y_text, x_title, y_title, height=300):
    """Curves over a common axis. series: [(name, kind, [(x, y, hint)])]; each is named at its right end."""
    names = max(text_width(name, NORMAL, True) for name, _, _ in series)
    ticks_width = max(text_width(y_text(t), SMALL) for t in y.ticks)
    left = max(ticks_width + 10, text_width(x_text(x.ticks[0]), SMALL) / 2)
    right, top, bottom = width - names - 14, 34, height - 46
    picture = Picture(width, height, title)

    def place(px, py):
        return left + (right - left) * x.share(px), bottom - (bottom - top) * y.share(py)

    picture.text(0, 13, y_title, SMALL, kind="soft")
    for tick in y.ticks:
        at = place(x.low, tick)[1]
        picture.line(left, at, right, at, "grid" if y.share(tick) > 0 else "axis")
        picture.text(left - 8, at + 4, y_text(tick), SMALL, "end", "soft")
    marked = [(place(tick, y.ticks[0])[0], x_text(tick)) for tick in x.ticks]
    for at, words in evenly(marked):
        picture.line(at, bottom, at, bottom + 5, "axis")
        picture.text(at, bottom + 19, words, SMALL, "middle", "soft")
    picture.text((left + right) / 2, bottom + 38, x_title, SMALL, "middle", "soft")
    ends = []
    for _, kind, points in series:
        placed = [place(px, py) for px, py, _ in points]
        picture.curve(placed, kind)
        for (px, py), (_, _, hint) in zip(placed, points):
            picture.mark(px, py, kind, hint)
        ends.append(placed[-1])
    labels = spread([py for _, py in ends], 17, top, bottom)
    for (name, kind, _), (px, _), at in zip(series, ends, labels):
        picture.text(max(px, right) + 10, at + 4.5, name, NORMAL, kind=f"series {kind}")
    return picture


def steps_of(value):
    """Opacity of a cell; none is so that neither dark nor light text can be read on it."""
    return next((opacity for most, opacity in ((0.5, 0.08), (0.75, 0.24), (0.9, 0.46), (0.97, 0.8)) if value < most), 1)


STEPS = [("< 0.5", 0.08), ("< 0.75", 0.24), ("< 0.9", 0.46), ("< 0.97", 0.8), ("more", 1)]


def heat(width, title, columns, rows, values, column_text, row_text, x_title, y_title):
    """A table of ratios; values[column, row]. A pair without one is blank."""
    left = max([text_width(row_text(r), SMALL) for r in rows]) + 12
    cell, tall, top = (width - left) / len(columns), 34, 30
    bottom = top + tall * len(rows)
    picture = Picture(width, bottom + 84, title)
    picture.text(0, 13, y_title, SMALL, kind="soft")
    brief = cell < 40  # .97 for 0.97, 1.1 for 1.08
    for j, row in enumerate(rows):
        picture.text(left - 10, top + tall * (j + 0.5) + 4, row_text(row), SMALL, "end", "soft")
        for i, column in enumerate(columns):
            if (column, row) not in values:
                continue
            value = values[column, row]
            opacity = steps_of(value)
            picture.rectangle(left + i * cell + 1, top + j * tall + 1, cell - 2, tall - 2, "first", opacity)
            words = f"{value:.2f}"
            if brief:
                words = f"{value:.1f}" if value >= 0.995 else words[1:]
            picture.text(left + (i + 0.5) * cell, top + (j + 0.5) * tall + 4.3, words, SMALL if brief else NORMAL,
                         "middle", "over" if opacity > 0.5 else "")
    for at, words in evenly([(left + (i + 0.5) * cell, column_text(column)) for i, column in enumerate(columns)]):
        picture.text(at, bottom + 16, words, SMALL, "middle", "soft")
    picture.text(left + (width - left) / 2, bottom + 36, x_title, SMALL, "middle", "soft")
    at = min(left, max(0, width - sum(31 + text_width(words, SMALL) for words, _ in STEPS) + 14))
    for words, opacity in STEPS:
        picture.rectangle(at, bottom + 58, 12, 12, "first", opacity)
        picture.text(at + 17, bottom + 68.5, words, SMALL, kind="soft")
        at += 17 + text_width(words, SMALL) + 14
    return picture


def dots(width, title, rows, x_title, legend=()):
    """A line per name, a mark per value on one scale from 0. rows: [(name, [(value, kind, label)])].

    A name stands before its line, or above it where the picture is narrow; the largest value has its label behind it.
    legend: [(kind, words)], a line of marks above all.
    """
    names = max(text_width(name, NORMAL) for name, _ in rows)
    above = names > 0.4 * width
    tall, top, left = (38, 4, 4) if above else (26, 4, names + 14)
    top += 22 if legend else 0
    lines = [lines_of(name, NORMAL, width - 8) if above else [name] for name, _ in rows]
    bottom = top + sum(tall + 15 * (len(one) - 1) for one in lines)
    scale = Linear(max(value for _, marks in rows for value, _, _ in marks), 4)
    right = width - 14 - max(text_width(label, SMALL) for _, marks in rows for _, _, label in marks)
    picture = Picture(width, bottom + 44, title)
    at = 6
    for kind, words in legend:
        picture.mark(at, 8, kind)
        picture.text(at + 10, 12, words, SMALL, kind="soft")
        at += 10 + text_width(words, SMALL) + 20

    def place(value):
        return left + (right - left) * scale.share(value)

    for tick in scale.ticks:
        # Names above the lines are not crossed.
        picture.line(place(tick), bottom if above and tick else top, place(tick), bottom + 5 * above,
                     "axis" if tick == 0 else "grid")
        picture.text(place(tick), bottom + 17, f"{tick:g}", SMALL, "middle", "soft")
    picture.text(place(scale.end / 2), bottom + 36, x_title, SMALL, "middle", "soft")
    y = top - 13
    for (name, marks), names in zip(rows, lines):
        y += tall + 15 * (len(names) - 1)
        for k, line in enumerate(reversed(names) if above else ()):
            picture.text(8, y - 10 - 15 * k, line, NORMAL)
        if not above:
            picture.text(left - 10, y + 4.5, name, NORMAL, "end")
        marks = sorted(marks)
        picture.line(place(0), y, place(marks[-1][0]), y, "axis")
        for k, (value, kind, label) in enumerate(marks):
            picture.mark(place(value), y, kind, f"{name}: {value:.2f}")
            if k == len(marks) - 1:
                picture.text(place(value) + 9, y + 4, label, SMALL)
    return picture


def matrix(sent, title):
    """Bytes from ranks (rows) to ranks (columns); what a rank keeps is grey."""
    n, cell = len(sent), 10
    most = max([b for i, row in enumerate(sent) for j, b in enumerate(row) if i != j] + [1])
    picture = Picture(n * cell, n * cell, title)
    for i, row in enumerate(sent):
        for j, count in enumerate(row):
            hint = f"rank {i} keeps {bytes_text(count)}" if i == j else f"{i} → {j}: {bytes_text(count)}"
            kind = "kept" if i == j and count else "first"
            opacity = 1 if kind == "kept" else 0.06 if not count else 0.25 + 0.75 * math.sqrt(count / most)
            picture.rectangle(j * cell + 0.5, i * cell + 0.5, cell - 1, cell - 1, kind, opacity, hint)
    return picture
