#!/usr/bin/env python3
"""Draws the page of `./run report` from what measure.py wrote: draw.py DATA.json PAGE.html [--plots DIRECTORY]

The page needs nothing else: style and pictures are in it, there is no script, and nothing is fetched. --plots writes
the plots that README and docs show as files too; save.py puts them there.
"""
import argparse
import json
import os
import statistics
from xml.sax.saxutils import escape

import chart
import others
from chart import bytes_text, time_text

WIDE, NARROW = 720, 346
PAGE_STYLE = chart.STYLE + """
*{box-sizing:border-box}
body{margin:0 auto;max-width:768px;padding:40px 24px 64px;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
h1{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}
h2{font-size:20px;line-height:1.3;margin:56px 0 4px}h3{font-size:15px;margin:28px 0 10px}
p{margin:0 0 14px}.lead,.note{color:var(--soft)}.note{font-size:13px;margin-top:8px}
svg{display:block;width:100%;height:auto}.narrow{display:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:24px 22px}
figure{margin:0;font-size:12px;line-height:1.4}figure svg{width:96px;margin-bottom:8px}
figure b{font-size:13px}figcaption span{display:block;color:var(--soft);overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;font-size:14px;margin:14px 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
@media(max-width:640px){body{padding:24px 22px 48px}h1{font-size:25px}h2{margin-top:44px}.wide{display:none}
.narrow{display:block}.tiles{grid-template-columns:1fr 1fr;gap:22px 16px}dl{grid-template-columns:1fr;gap:0}
dd{margin-bottom:8px}}
"""


def share_text(value):
    return f"{value:.2f}"


def times_text(value):
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


class Section:
    """A heading, a sentence that says what was found, a picture in two widths, and how it was measured."""

    def __init__(self, name, heading, finding, draw, note):
        self.name, self.heading, self.finding, self.draw, self.note = name, heading, finding, draw, note

    def html(self):
        pictures = self.draw(WIDE).svg("wide") + self.draw(NARROW).svg("narrow")
        return (f"<section>\n<h2>{escape(self.heading)}</h2>\n<p>{escape(self.finding)}</p>\n{pictures}"
                f'<p class="note">{escape(self.note)}</p>\n</section>\n')


def curve(points, x, y, hint):
    return [(p[x], y(p), hint(p)) for p in points]


def sizes_section(data):
    direct, packed = data["sizes"]["direct"], data["sizes"]["packed"]
    if not direct or not packed:
        return None
    large = [p["ratio"] for p in direct[len(direct) // 2:]], [p["ratio"] for p in packed[len(packed) // 2:]]
    finding = (f"From {bytes_text(direct[len(direct) // 2]['bytes'])} on, rows move to columns at "
               f"{share_text(statistics.median(large[0]))} of the speed of a straight copy; in messages between threads "
               f"at {share_text(statistics.median(large[1]))}.")

    def draw(width):
        def rate(name):
            return lambda p: p[name]

        def hint(name, who):
            return lambda p: f"{who}, {bytes_text(p['bytes'])}: {p[name]:.3g} GB/s"

        series = [("memcpy", "copy", curve(direct, "bytes", rate("memcpy_gbps"), hint("memcpy_gbps", "memcpy"))),
                  ("direct", "first", curve(direct, "bytes", rate("algbw"), hint("algbw", "direct"))),
                  ("packed", "second", curve(packed, "bytes", rate("algbw"), hint("algbw", "packed")))]
        most = max(y for _, _, points in series for _, y, _ in points)
        return chart.lines(width, "Throughput over size", series, chart.Log([p["bytes"] for p in direct], 4),
                           chart.Linear(most), bytes_text, lambda v: f"{v:g}", "size of the tensor",
                           "GB/s of the tensor")

    return Section("throughput", "Throughput over size", finding, draw,
                   "f32, rows of 4 ranks to columns of 4 ranks; ranks are threads. memcpy copies as many bytes by as "
                   "many threads, in turn with ours. Small tensors stay in a cache.")


def peers_section(data):
    rows = [p for p in data["peers"] if not p.get("skipped") and p.get("gbps") and p.get("memcpy_gbps")]
    skipped = [p for p in data["peers"] if p.get("skipped")]
    if not rows:
        return None
    rows.sort(key=lambda p: -p["gbps"] / p["memcpy_gbps"])
    quotients = [p["ours_gbps"] / p["gbps"] for p in rows if p.get("ours_gbps")]
    best = rows[0]["gbps"] / rows[0]["memcpy_gbps"]
    finding = f"The fastest peer ({rows[0]['peer']}) reaches {share_text(best)} of a straight copy's speed"
    if quotients:
        finding += (f"; in the same runs reshard is {times_text(min(quotients))} to {times_text(max(quotients))} times "
                    "as fast as a peer")
    finding += "."
    sizes = sorted({p["bytes"] for p in rows})

    def draw(width):
        table = []
        for p in rows:
            peer, ours = p["gbps"] / p["memcpy_gbps"], (p.get("ours_gbps") or 0) / p["memcpy_gbps"]
            label = f"{ours:.2f} beside {peer:.2f}" if ours else f"{peer:.2f}"
            marks = [(peer, "copy", label)] + ([(ours, "first", label)] if ours else [])
            table.append((p["peer"] + (f" | {p['ours']}" if p.get("ours") else ""), marks))
        return chart.dots(width, "Peers", table, "share of a straight copy's speed",
                          [("copy", "the peer"), ("first", "reshard, in turns with it")])

    note = (f"{' or '.join(map(bytes_text, sizes))}, rows to columns or what the name says. A triangle is the peer, a "
            "circle reshard in turns with it, by the way named behind the bar.")
    if data.get("peers_run"):
        note += f" Run of {data['peers_run']}."
    if skipped:
        note += " Skipped: " + "; ".join(f"{p['peer']} ({p['skipped']})" for p in skipped) + "."
    return Section("peers", "Beside others", finding, draw, note)


def runs_section(data):
    values = {(cell["run"], cell["width"]): cell["ratio"] for cell in data["runs"]}
    if not values:
        return None
    runs, widths = sorted({r for r, _ in values}), sorted({w for _, w in values})
    slow = min(values, key=values.get)
    finding = (f"{sum(v >= 0.9 for v in values.values())} of {len(values)} pairs reach 0.9 of a straight copy's speed; "
               f"the slowest, runs of {bytes_text(slow[0])} of {slow[1]}-byte elements, has {values[slow]:.2f}.")

    def draw(width):
        def run_text(run):
            return bytes_text(run) if width == WIDE else bytes_text(run).replace(" KiB", "K").replace(" B", "")

        return chart.heat(width, "Run length and element width", runs, widths, values, run_text,
                          lambda w: f"{w} B", "contiguous run" + ("" if width == WIDE else " in bytes"),
                          "element width; share of a straight copy's speed")

    size = "1" if data["quick"] else "64"
    return Section("runs", "Run length and element width", finding, draw,
                   f"Rows to columns of 4 ranks, direct, {size} MiB. A run is what lies side by side on both sides: "
                   "it cannot be shorter than an element.")


def limits_section(data):
    points = data["limits"]
    if not points:
        return None
    best = max(points, key=lambda p: p["ratio"])
    enough = next(p for p in points if p["ratio"] >= 0.95 * best["ratio"])
    finding = (f"A limit of {bytes_text(enough['limit'])} on each rank is enough for {share_text(enough['ratio'])} of "
               f"a straight copy's speed, the most seen being {share_text(best['ratio'])} at "
               f"{bytes_text(best['limit'])}.")

    def draw(width):
        series = [("packed", "second", curve(points, "limit", lambda p: p["ratio"], lambda p: (
            f"limit {bytes_text(p['limit'])}: {p['ratio']:.2f} of memcpy, {p['rounds']} rounds, "
            f"{bytes_text(p['workspace_bytes'])} used")))]
        return chart.lines(width, "Workspace and speed", series, chart.Log([p["limit"] for p in points], 4),
                           chart.Linear(max(1, best["ratio"])), bytes_text, lambda v: f"{v:g}",
                           "limit of staging memory on each rank", "share of a straight copy's speed", 260)

    return Section("limits", "Workspace and speed", finding, draw,
                   f"{bytes_text(points[0]['bytes'])}, rows to columns of 4 ranks, packed. Under a small limit the "
                   "bytes travel in more rounds.")


def ranks_section(data):
    kinds = [("direct", "first"), ("packed", "second")]
    points = {path: [p for p in data["ranks"] if p["path"] == path] for path, _ in kinds}
    if not all(points.values()):
        return None
    first, last = points["direct"][0], points["direct"][-1]
    cores = data["environment"]["info"]["machine"]["cores"]
    finding = (f"On {cores} cores, {last['ranks']} ranks reach {share_text(last['ratio'])} of a straight copy's speed, "
               f"{first['ranks']} rank{'s' if first['ranks'] > 1 else ''} {share_text(first['ratio'])}.")

    def draw(width):
        series = [(path, kind, curve(points[path], "ranks", lambda p: p["ratio"],
                                     lambda p: f"{p['path']}, {p['ranks']} ranks: {p['ratio']:.2f} of memcpy"))
                  for path, kind in kinds]
        most = max(1, *(p["ratio"] for p in data["ranks"]))
        return chart.lines(width, "Scaling over ranks", series, chart.Log([p["ranks"] for p in points["direct"]], 2),
                           chart.Linear(most), lambda v: f"{v:g}", lambda v: f"{v:g}", "ranks",
                           "share of a straight copy's speed", 260)

    return Section("ranks", "Scaling over ranks", finding, draw,
                   f"{bytes_text(first['bytes'])}, rows to columns. Ranks are threads that share the cores; copy "
                   "threads are as many as cores in all rows.")


def plans_section(data):
    kinds = list(dict.fromkeys(p["kind"] for p in data["plans"]))
    if not kinds:
        return None
    largest = max(p["ranks"] for p in data["plans"])
    ends = {p["kind"]: p for p in data["plans"] if p["ranks"] == largest}
    quick = min(ends.values(), key=lambda p: p["plan_us"])
    slow = max(ends.values(), key=lambda p: p["plan_us"])
    finding = (f"One rank of {largest:,} plans {quick['kind']} with {quick['peers']:,} peers in "
               f"{time_text(quick['plan_us'])}, and {slow['kind']} with {slow['peers']:,} in "
               f"{time_text(slow['plan_us'])}.")

    def draw(width):
        series = []
        for kind, colour in zip(kinds, ("first", "second", "third")):
            points = [p for p in data["plans"] if p["kind"] == kind]
            name = kind if width == WIDE else kind.split()[0]
            series.append((name, colour, curve(points, "ranks", lambda p: p["plan_us"], lambda p: (
                f"{p['kind']}, {p['ranks']:,} ranks, {p['peers']:,} peers: {time_text(p['plan_us'])}"))))
        times = [p["plan_us"] for p in data["plans"]]
        return chart.lines(width, "Cost of a plan", series, chart.Log([p["ranks"] for p in data["plans"]], 4),
                           chart.Log([min(times) * 0.8, max(times) * 1.25], 10), lambda v: f"{v:,}", time_text,
                           "ranks of the world", "time of one rank's plan")

    return Section("plans", "Cost of a plan", finding, draw,
                   "32768 x 32768, one thread, medians of plans made by programs of their own, so that nothing is "
                   "cached. Both axes are logarithmic.")


MICRO = [("copy_runs", "runs of {}"), ("copy_shifted", "source shifted by {}"),
         ("copy_transpose", "transpose of {} elements")]


def micro_section(data):
    rates = data["micro"].get("rates", {})
    rows = []
    for case, words in MICRO:
        copy = rates.get(case + "_memcpy")
        for name, rate in rates.items():
            argument = name.removeprefix(case + "/")
            if copy and argument.isdigit():
                rows.append((case, int(argument), words.format(bytes_text(int(argument))), rate / copy))
    if not rows:
        return None
    rows = [row[2:] for row in sorted(rows)]
    low, high = min(rows, key=lambda r: r[1]), max(rows, key=lambda r: r[1])
    finding = (f"Copies alone reach from {low[1]:.2f} ({low[0]}) to {high[1]:.2f} ({high[0]}) of the speed of memcpy "
               "in the same run.")

    def draw(width):
        table = [(name, [(value, "first", share_text(value))]) for name, value in rows]
        return chart.dots(width, "Copies alone", table, "share of memcpy's speed")

    return Section("copies", "Copies alone", finding, draw,
                   "reshard_micro, Google Benchmark, 64 MiB by all cores; each case beside a memcpy of as many bytes "
                   "by as many threads.")


def suites_html(data):
    parts = []
    cases = [case for suite in data["suites"].values() for case in suite if case.get("sent")]
    if not cases:
        return ""
    bound = sum(case["wire_bytes"] == case["lower_bound_bytes"] for case in cases)
    parts.append("<section>\n<h2>Who sends what to whom</h2>\n"
                 f"<p>In {bound} of {len(cases)} reshards no rank sends a byte that its receiver has: what travels is "
                 "the lower bound.</p>\n"
                 '<p class="note">8 ranks. Row: sender; column: receiver; the stronger its colour, the more bytes; grey stays '
                 "on its rank. Under each: the share of the bytes delivered that travels, and the speed beside a straight "
                 "copy of as many bytes.</p>\n")
    for suite, entries in data["suites"].items():
        parts.append(f"<h3>{escape(suite)}</h3>\n<div class=\"tiles\">\n")
        for case in entries:
            if not case.get("sent"):
                continue
            sent = case["sent"]
            total = sum(map(sum, sent))
            what = case["model"] or f"{case['shape']} {case['dtype']}"
            parts.append(
                f"<figure>{chart.matrix(sent, case['case']).svg()}<figcaption><b>{escape(case['case'])}</b>"
                f"<span>{escape(what)}</span><span>{escape(case['src'])} → {escape(case['dst'])}</span>"
                f"<span>{100 * case['wire_bytes'] / total if total else 0:.0f} % travels</span>"
                f"<span>{case['ratio']:.2f} × memcpy</span></figcaption></figure>\n")
        parts.append("</div>\n")
    parts.append("</section>\n")
    return "".join(parts)


def environment_html(data):
    e = data["environment"]
    info, machine = e["info"], e["info"]["machine"]
    library = data["micro"].get("context", {})
    rows = [
        ("processor", f"{machine['processor']}, {machine['cores']} cores, {machine['isa']} of "
         f"{', '.join(info['isas'])}"),
        ("memory", f"{bytes_text(machine['memory_bytes'])}; caches {bytes_text(machine['l1_bytes'])}, "
         f"{bytes_text(machine['l2_bytes'])}, {bytes_text(machine['l3_bytes'])}"),
        ("system", machine["system"]), ("compiler", info["compiler"]),
        ("reshard", f"{info['reshard']}, commit {e['commit']}"),
        ("CUDA", f"runtime {info['cuda_runtime']}, driver {info['cuda_driver']}" if info.get("cuda") else "none"),
        ("NCCL", info.get("nccl_version") or "none"),
        ("GPUs", ", ".join(str(g.get("name", g)) if isinstance(g, dict) else str(g) for g in info["gpus"]) or "none"),
        ("Google Benchmark", " ".join(filter(None, (library.get("library_version"), library.get("library_build_type"),
                                                    "build" if library else "not run")))),
        ("measured", f"{e['date']}, in {data['seconds']:.0f} s; load before it {e['load']:.1f}"),
    ]
    return ("<section>\n<h2>Environment</h2>\n<dl>\n" +
            "".join(f"<dt>{escape(k)}</dt><dd>{escape(v.strip())}</dd>\n" for k, v in rows) + "</dl>\n</section>\n")


SECTIONS = (sizes_section, peers_section, runs_section, micro_section, limits_section, ranks_section, plans_section)
PLOTS = ("throughput", "peers", "runs", "limits", "plans")


def sections_of(data):
    return [s for s in (make(data) for make in SECTIONS) if s is not None]


def is_busy(data):
    e = data["environment"]
    return e["others"] > others.BUSY if "others" in e else e["load"] > 0.5 * e["info"]["machine"]["cores"]


def source_of(data):
    e = data["environment"]
    machine = e["info"]["machine"]
    busy = ", busy with other work" if is_busy(data) else ""
    return f"{machine['cores']} cores of an {machine['processor']}{busy}, commit {e['commit']}, {e['date']}"


def plots(data):
    """The plots as files of their own: {name: SVG}."""
    drawn = {}
    for section in sections_of(data):
        if section.name in PLOTS:
            picture = section.draw(WIDE)
            picture.height += 22
            run = data.get("peers_run") if section.name == "peers" else None
            picture.text(0, picture.height - 4, run or source_of(data), kind="soft")
            drawn[section.name] = picture.svg(alone=True)
    return drawn


def page(data):
    e = data["environment"]
    machine = e["info"]["machine"]
    warnings = []
    if data["quick"]:
        warnings.append("Few, small cases: this page was made to be tried, not to be quoted.")
    if is_busy(data):
        taken = f"others took {100 * e['others']:.0f} % of it" if "others" in e else f"load {e['load']:.1f}"
        warnings.append(f"The machine was busy ({taken}, {machine['cores']} cores): ratios of runs taken in turns hold "
                        "better than GB/s.")
    if data.get("left_out"):
        warnings.append(f"Left out, since the time was over: {', '.join(data['left_out'])}.")
    note = "".join(f'<p class="note">{escape(w)}</p>\n' for w in warnings)
    body = "".join(s.html() for s in sections_of(data)) + suites_html(data) + environment_html(data)
    return ('<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n<meta charset="utf-8"/>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
            f"<title>reshard, measured</title>\n<style>{PAGE_STYLE}</style>\n</head>\n<body>\n"
            f'<h1>reshard, measured</h1>\n<p class="lead">{escape(source_of(data))}</p>\n{note}{body}</body>\n</html>\n')


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("page")
    parser.add_argument("--plots", metavar="DIRECTORY", help="also write the plots as files of their own")
    options = parser.parse_args()
    with open(options.data, encoding="utf-8") as file:
        data = json.load(file)
    write(options.page, page(data))
    if options.plots:
        os.makedirs(options.plots, exist_ok=True)
        for name, svg in plots(data).items():
            write(os.path.join(options.plots, name + ".svg"), svg)


if __name__ == "__main__":
    main()
