#!/usr/bin/env python3
"""Measures what the page of `./run report` shows: measure.py PROGRAM DIRECTORY [--quick] [--seconds S] [--peers FILE]

Writes DIRECTORY/data.json, which draw.py reads. --seconds S begins no part after S seconds, and the page says what is
left out. All figures are those of `reshard bench`, `reshard plan` and
`reshard_micro`; a ratio is to a straight copy of as many bytes, taken in turn with ours.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time

import others

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KIB, MIB = 1 << 10, 1 << 20
WIDTHS = {1: "u8", 2: "bf16", 4: "f32", 8: "f64", 16: "c128"}
ROWS_TO_COLUMNS = ["--src", "chunk(0)", "--dst", "chunk(1)"]


class Program:
    def __init__(self, path, pairs):
        self.path, self.pairs = path, pairs

    def ask(self, *arguments):
        """Runs a command that writes JSON; None, with its words on stderr, where it fails."""
        done = subprocess.run([self.path, *arguments, "--json", "-"], capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            print(f"report: reshard {' '.join(arguments)}: {done.stderr.strip()}", file=sys.stderr)
            return None
        return json.loads(done.stdout)

    def bench(self, *arguments):
        """The rows that were measured; a suite goes on behind a case that does not fit."""
        answer = self.ask("bench", "-n", str(self.pairs), "-w", "2", *arguments)
        return [row for row in answer["rows"] if "ratio" in row] if answer else []


def pick(row, *names):
    return {name: row.get(name) for name in ("bytes", "algbw", "memcpy_gbps", "ratio", *names)}


def shape_of(size, run, width, ranks):
    """A tensor of about `size` bytes whose rows are cut in runs of `run` bytes by `ranks` columns."""
    columns = ranks * run // width
    rows = max(ranks, size // (columns * width) // ranks * ranks)
    return f"{rows}x{columns}"


def measure_sizes(program, quick):
    largest = 4 * MIB if quick else 256 * MIB
    rows = {}
    for path in "direct", "packed":
        rows[path] = [
            pick(row)
            for row in program.bench("--shape", "64x8192", "--dtype", "f32", *ROWS_TO_COLUMNS, "--ranks", "4",
                                     "--path", path, "-b", "64K", "-e", str(largest), "-f", "4")
        ]
    return rows


def measure_runs(program, quick):
    runs = [4, 64, 8 * KIB] if quick else [1, 2, 4, 8, 16, 64, 256, 1 * KIB, 8 * KIB, 64 * KIB]
    widths = [1, 4, 16] if quick else list(WIDTHS)
    size = 1 * MIB if quick else 64 * MIB
    cells = []
    for width in widths:
        for run in runs:
            if run < width:
                continue
            for row in program.bench("--shape", shape_of(size, run, width, 4), "--dtype", WIDTHS[width],
                                     *ROWS_TO_COLUMNS, "--ranks", "4", "--path", "direct"):
                cells.append({"run": run, "width": width, **pick(row)})
    return cells


def measure_plans(program, quick):
    """Time of one rank's plan, the median of several programs, over the size of the world."""
    grid = {64: "8x8", 256: "16x16", 1024: "32x32", 4096: "64x64", 16384: "128x128", 16: "4x4"}
    points = []
    for ranks in [16, 256] if quick else [16, 64, 256, 1024, 4096, 16384]:
        kinds = {
            "rows to columns": ROWS_TO_COLUMNS,
            "grid to rows": ["--src", f"mesh({grid[ranks]};S0,S1)", "--dst", "chunk(0)"],
            "block-cyclic to rows": ["--src", f"cyclic({grid[ranks]};32x32)", "--dst", "chunk(0)"],
        }
        for kind, layouts in kinds.items():
            answers = [
                program.ask("plan", "--shape", "32768x32768", *layouts, "--ranks", str(ranks), "--rank",
                            str(ranks // 3), "--device", "cpu") for _ in range(1 if quick else 5)
            ]
            ones = [answer["per_rank"][0] for answer in answers if answer]
            if ones:
                points.append({"kind": kind, "ranks": ranks, "peers": len(ones[0]["peers"]),
                               "plan_us": statistics.median(one["plan_us"] for one in ones)})
    return points


def measure_ranks(program, quick):
    size = 1 * MIB if quick else 128 * MIB
    points = []
    for ranks in [2, 8] if quick else [1, 2, 4, 8, 16, 32, 64]:
        for path in "direct", "packed":
            for row in program.bench("--shape", f"{size // 4 // 4096}x4096", "--dtype", "f32", *ROWS_TO_COLUMNS,
                                     "--ranks", str(ranks), "--path", path):
                points.append({"ranks": ranks, "path": path, **pick(row)})
    return points


def measure_limits(program, quick):
    size = 4 * MIB if quick else 256 * MIB
    limits = [64 * KIB, 1 * MIB] if quick else [64 * KIB << i for i in range(11)]
    points = []
    for limit in limits:
        for row in program.bench("--shape", f"{size // 4 // 4096}x4096", "--dtype", "f32", *ROWS_TO_COLUMNS, "--ranks",
                                 "4", "--path", "packed", "--workspace", str(limit)):
            points.append({"limit": limit, **pick(row, "workspace_bytes", "rounds")})
    return points


def sized_rules(name, mesh, directory):
    """A rule file of the tree with the sizes of its mesh dims written in, since the sides may differ in them."""
    sizes = dict(dim.split("=") for dim in mesh.split(",")) if mesh else {}
    with open(os.path.join(ROOT, "bench", "models", "rules", name + ".rules")) as file:
        text = file.read()

    def add_sizes(match):
        dims = [f"{dim}={sizes[dim]}" if dim in sizes else dim for dim in match[1].split(",")]
        return f"mesh({','.join(dims)};"

    path = os.path.join(directory, f"{name}-{mesh.replace('=', '').replace(',', '-') or 'all'}.rules")
    with open(path, "w") as file:
        file.write(re.sub(r"mesh\(([a-z0-9_,]+);", add_sizes, text))
    return "@" + path


def plan_case(program, row, ranks, directory):
    """Bytes from each rank to each; what a rank keeps is on the diagonal."""
    sides = []
    for side, mesh in ("src", row.get("mesh") or ""), ("dst", row.get("mesh_dst") or ""):
        layout = row[side]
        sides += ["--" + side, sized_rules(layout[1:], mesh, directory) if layout.startswith("@") else layout]
    what = ["--model", row["model"]] if row.get("model") else ["--shape", row["shape"], "--dtype", row["dtype"]]
    plan = program.ask("plan", *what, *sides, "--ranks", str(ranks), "--peers", "--device", "cpu",
                       "--svg", os.path.join(directory, row["case"] + ".svg"))
    if plan is None:
        return {}
    sent = [[0] * ranks for _ in range(ranks)]
    for one in plan["per_rank"]:
        sent[one["rank"]][one["rank"]] = one["self_copy_bytes"]
        for peer in one["peers"]:
            sent[one["rank"]][peer["rank"]] = peer["sent_bytes"]
    return {"sent": sent, "bytes": plan["bytes"], "wire_bytes": plan["wire_bytes"],
            "lower_bound_bytes": plan["lower_bound_bytes"], "messages": plan["messages"]}


def measure_suite(program, quick, directory, suite, ranks=8):
    pictures = os.path.join(directory, "plans", suite)
    os.makedirs(pictures, exist_ok=True)
    cases = []
    for row in program.bench("--suite", suite, "--scale", "1/512" if quick else "1/32", "--ranks", str(ranks)):
        case = {name: row.get(name) for name in ("case", "src", "dst", "model", "shape", "dtype", "ratio", "algbw")}
        cases.append({**case, "moved_bytes": row["bytes"], **plan_case(program, row, ranks, pictures)})
    return cases


def measure_micro(program, quick):
    """Copies alone, by run length, alignment and width, each beside its memcpy sibling in the same run."""
    micro = os.path.join(os.path.dirname(program.path), "reshard_micro")
    if not os.access(micro, os.X_OK):
        return {}
    cases = "^copy_(runs/(64|65536)|transpose/4|.*_memcpy)/" if quick else "^copy_"
    done = subprocess.run([micro, "--benchmark_filter=" + cases, "--benchmark_format=json",
                           "--benchmark_repetitions=" + ("1" if quick else "5"),
                           "--benchmark_enable_random_interleaving=true",
                           "--benchmark_min_time=" + ("0.01" if quick else "0.1")], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"report: reshard_micro: {done.stderr.strip()}", file=sys.stderr)
        return {}
    answer = json.loads(done.stdout)
    rates = {}
    for one in answer["benchmarks"]:
        if one.get("run_type", "iteration") == "iteration" and "bytes_per_second" in one:
            rates.setdefault(one["run_name"].removesuffix("/real_time"), []).append(one["bytes_per_second"])
    return {"context": answer["context"], "rates": {name: statistics.median(r) for name, r in rates.items()}}


def describe(program):
    def said(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    commit = os.environ.get("RESHARD_COMMIT") or said("git", "rev-parse", "--short", "HEAD")
    if commit and said("git", "status", "--porcelain", "--untracked-files=no"):
        commit += ", changed"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or "unknown",
        "load": os.getloadavg()[0],
        "info": program.ask("info"),
    }


def read_peers(path):
    """Rows of ./run peers, and which run they are of: that of the file, else the one that is in the tree."""
    if path and os.path.exists(path):
        with open(path) as file:
            peers = json.load(file)
        run = peers.get("machine", {})
        busy = f", others took {100 * run['others']:.0f} % of the machine" if "others" in run else ""
        return peers["rows"], f"{run['date']}, commit {run['commit']}{busy}" if run else ""
    try:
        with open(os.path.join(ROOT, "profiles", "results", "report.json")) as file:
            kept = json.load(file)
        return kept["peers"], kept["peers_run"]
    except OSError:
        return [], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("directory")
    parser.add_argument("--quick", action="store_true", help="few and small cases: to try the page, not to publish it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no part after so long")
    parser.add_argument("--peers", help="a file of peers measured beside ours, made by ./run peers")
    options = parser.parse_args()
    directory = os.path.abspath(options.directory)
    program = Program(os.path.abspath(options.program), 3 if options.quick else 9)
    data = {"version": 1, "quick": options.quick, "environment": describe(program)}
    if data["environment"]["info"] is None:
        sys.exit(f"report: {options.program} does not run")
    os.makedirs(directory, exist_ok=True)
    begin, before = time.monotonic(), others.used()
    data.update(sizes={"direct": [], "packed": []}, runs=[], limits=[], ranks=[], plans=[], micro={}, suites={}, left_out=[])

    def take(place, name, measure):
        if time.monotonic() - begin < options.seconds:
            place[name] = measure()
        else:
            data["left_out"].append(name)
        print(f"[{time.monotonic() - begin:4.0f}s] {name}{': left out' if name in data['left_out'] else ''}", file=sys.stderr)

    for name, measure in {"sizes": measure_sizes, "runs": measure_runs, "limits": measure_limits, "ranks": measure_ranks,
                          "plans": measure_plans, "micro": measure_micro}.items():
        take(data, name, lambda: measure(program, options.quick))
    for suite in "training", "inference", "hpc":
        take(data["suites"], suite, lambda: measure_suite(program, options.quick, directory, suite))
    data["seconds"] = round(time.monotonic() - begin, 1)
    data["environment"]["others"] = others.share(before, others.used())
    if data["environment"]["others"] > others.BUSY:
        print(others.words(data["environment"]["others"]))
    data["peers"], data["peers_run"] = read_peers(options.peers)
    with open(os.path.join(directory, "data.json"), "w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
