"""Others beside us: the peers of the field and ours take turns at the same work. ./run peers calls it.

A peer is a program of its own that does a work when it is told to, and sleeps else (turns.py, alltoall.c). In each turn it
does its works once, ours is run for each kind that they are compared with, and a straight copy of as many bytes by all cores is
timed. The figures are medians over turns. The work is a reshard of SIDE x SIDE f32 over 4 ranks, from rows to columns or from
blocks of 64 to blocks of 96, or a checkpoint. Results of numpy, JAX, MPI, ScaLAPACK and COSTA and what DCP loads are checked,
outside of the times."""

import argparse
import datetime
import json
import os
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles", "report"))
import others
from costa import Lacking, costa_library
from peers_table import measured, skipped, table
from peers_gpu import gpu_rows

RANKS, SIDE, LIMIT = 4, 8192, 300  # LIMIT: seconds for one answer
# More turns where ranks are more than cores: times have modes there, by which ranks share a core.
TURNS, MORE_TURNS = 5, {"mpi": 21}
STAYS = 3  # turns that a peer's MPI processes live: which of them share a core is drawn anew then, as it is for ours
HERE = os.path.dirname(os.path.abspath(__file__))
ROWS, BLOCKS = ("chunk(0)", "chunk(1)"), ("cyclic(2x2;64x64)", "cyclic(2x2;96x96)")
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(RANKS)]


class Skipped(Exception):
    """Says why a peer is not measured."""


class Worker:
    """A peer's program. It prints "ready VERSION" or "skipped REASON", then seconds for each line that it is sent."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, bufsize=0,
                                            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        try:
            word, _, rest = self.answer().partition(" ")
            if word == "skipped":
                raise Skipped(rest)
            if word != "ready":
                raise Skipped(f"it says '{word} {rest}'")
        except Skipped:
            self.close()
            raise
        self.version = rest

    def answer(self):
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self.process.stdout], [], [], LIMIT)[0]:
                raise Skipped(f"no answer in {LIMIT} s")
            more = self.process.stdout.read(1)
            if not more:
                with open(self.log) as file:
                    said = [text.strip() for text in file if text.strip()] or ["nothing"]
                raise Skipped(f"it ended, status {self.process.wait()}; it said: {said[-1][:200]}")
            line += more
        return line.decode().strip()

    def seconds(self, work):
        try:
            self.process.stdin.write(work.encode() + b"\n")
        except BrokenPipeError:
            pass  # the answer says why
        said = self.answer()
        try:
            return float(said)
        except ValueError:
            raise Skipped(f"no time is said: {said[:200]}") from None

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Ours:
    """Our side of the comparison. Each kind returns GB/s of the same bytes that the peer moves."""

    def __init__(self, build, side, mib, directory):
        self.build, self.side, self.mib, self.directory = build, side, mib, directory
        self.bytes = side * side * 4

    def json(self, *command):
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise Skipped(f"ours ended, status {done.returncode}: {(done.stderr.strip() or 'nothing said').splitlines()[-1]}")
        return [json.loads(line) for line in done.stdout.splitlines()] if done.stdout.startswith('{"bytes"') \
            else json.loads(done.stdout)

    def program(self, name):
        path = os.path.join(self.build, name)
        if not os.access(path, os.X_OK):
            raise Skipped(f"{name} is not built here")
        return path

    def bench(self, *options, layouts=ROWS, start=(), path=None):
        row = self.json(*start, self.program("reshard"), "bench", "--shape", f"{self.side}x{self.side}", "--src", layouts[0],
                        "--dst", layouts[1], "-n", 5, "-w", 1, "--json", "-", *options)["rows"][0]
        if path not in (None, row["path"]):
            raise Skipped(f"ours takes the {row['path']} path here, not the {path} one")
        return row["algbw"], row["memcpy_gbps"]

    def micro(self, case):
        """A case there and back, 8192 x 8192."""
        row = self.json(self.program("reshard_micro"), f"--benchmark_filter=^{case}/", "--benchmark_format=json")["benchmarks"][0]
        return 2 * self.bytes / row["real_time"] / {"ns": 1, "us": 1e3, "ms": 1e6}[row["time_unit"]]

    def state(self, *arguments):
        rows = self.json(self.program("reshard_state_bench"), *arguments)
        return (self.mib << 20) / 1e9 / statistics.median(row["seconds"] for row in rows)

    def run(self, kind):
        stored = os.path.join(self.directory, "ours")
        layouts = BLOCKS if kind.endswith(", blocks") else ROWS
        kind = kind.removesuffix(", blocks")
        if kind == "execute":
            return self.bench("--ranks", RANKS)[0]
        if kind == "execute, 1 thread":
            return self.bench("--ranks", RANKS, "--threads", 1)[0]
        if kind == "execute, processes of a node":
            return self.bench("--processes", RANKS, "--comm", "node", layouts=layouts)[0]
        if kind == "execute over MPI, shared memory":
            return self.bench("--comm", "mpi", layouts=layouts, start=MPIRUN, path="direct")[0]
        if kind == "execute over MPI, messages":
            return self.bench("--comm", "mpi", "--path", "packed", layouts=layouts, start=MPIRUN)[0]
        if kind == "save":
            shutil.rmtree(stored, ignore_errors=True)
            return self.state("save", stored, RANKS, "chunk(0)", self.mib, 16, 3)
        if kind == "load":
            return self.state("load", stored, RANKS - 1, "chunk(1)", 3)
        function, _, memory = kind.partition(", ")
        case = {"redistribute": "dtensor_redistribute", "reshard": "sharded_reshard"}[function] + "_there_and_back_4_ranks"
        return self.micro(case + ("_new_memory" if memory else ""))

    def memcpy(self):
        return self.bench("--ranks", RANKS)[1]


def objects(function, side):
    """The kinds for a peer that makes tensors: ours has cases of 8192 x 8192 alone."""
    return [function, f"{function}, new memory"] if side == SIDE else ["execute"]


def groups(options, directory, mib):
    """For each group its program and works: (work, name, bytes, how often they are moved, kinds of ours)."""
    side, bytes_, sizes = options.side, 4 * options.side**2, [str(options.side), str(RANKS)]
    script = os.path.join(HERE, "peer_{}.py").format
    scalapack = [*MPIRUN, os.path.join(options.build, "reshard_scalapack"), str(side)]
    by_processes = ["execute over MPI, messages", "execute over MPI, shared memory", "execute, processes of a node"]
    by_blocks = [f"{kind}, blocks" for kind in by_processes]
    torch = [options.torch_python, "-W", "ignore", script("torch"), *sizes, directory, str(mib)]
    return {
        "numpy": ([options.python, script("numpy"), *sizes], [
            ("slices", "numpy, slices, 1 thread", bytes_, 1, ["execute, 1 thread", "execute"])]),
        "mpi": ([*MPIRUN, os.path.join(options.build, "reshard_alltoall"), str(side)], [
            (way, way, bytes_, 1, by_processes)
            for way in ("MPI_Alltoallw", "pack + MPI_Alltoall")]),
        "scalapack": (scalapack, [("psgemr2d", "ScaLAPACK, psgemr2d, blocks", bytes_, 1, by_blocks)]),
        "costa": (scalapack, [("psgemr2d", "COSTA, psgemr2d, blocks", bytes_, 1, by_blocks)]),
        "jax": ([options.python, script("jax"), *sizes], [
            ("device_put", "JAX, device_put", bytes_, 1, ["execute", *(["redistribute, new memory"] if side == SIDE else [])])]),
        "torch": (torch, [
            ("DTensor.redistribute", "PyTorch, DTensor.redistribute", bytes_, 2, objects("redistribute", side)),
            ("ShardedTensor.reshard", "PyTorch, ShardedTensor.reshard", bytes_, 2, objects("reshard", side))]),
        "dcp": (torch, [
            ("save, HuggingFaceStorageWriter", "PyTorch, DCP save, HuggingFaceStorageWriter", mib << 20, 1, ["save"]),
            ("save, FileSystemWriter", "PyTorch, DCP save, FileSystemWriter", mib << 20, 1, ["save"]),
            ("load", "PyTorch, DCP load, 4 by rows to 3 by columns", mib << 20, 1, ["load"])]),
    }


def turns_of(options, name):
    """Measured turns of a group; with no name, of most groups."""
    return options.turns or (1 if options.quick else MORE_TURNS.get(name, TURNS))


def program_missing(command):
    for program in (command[0], command[len(MPIRUN)] if command[:1] == MPIRUN[:1] else command[0]):
        if shutil.which(program) is None:
            return f"no {os.path.basename(program)} here"
    return None


def measure(command, works, ours, turns, log):
    """The rows of a group, and the version that its program says it has."""
    missing = program_missing(command)
    if missing:
        raise Skipped(missing)
    kinds = list(dict.fromkeys(kind for work in works for kind in work[4]))
    if "load" in kinds:
        ours.run("save")  # which the load of both reads
    worker = Worker(command, log)
    theirs, mine, memcpy, unable = {work[0]: [] for work in works}, {kind: [] for kind in kinds}, [], {}
    try:
        for turn in range(turns + 1):  # the first is a warm-up
            if command[:1] == MPIRUN[:1] and turn > 1 and turn % STAYS == 1:
                worker.close()
                worker = Worker(command, log)
                for work in works:
                    worker.seconds(work[0])  # not measured: its first one
            for work, _, bytes_, moves, _ in works:
                theirs[work] += [moves * bytes_ / 1e9 / worker.seconds(work)][:turn]
            for kind in kinds:
                try:
                    mine[kind] += [ours.run(kind)][:turn] if kind not in unable else []
                except Skipped as reason:
                    unable[kind] = str(reason)
            memcpy += [ours.memcpy()][:turn]
    finally:
        worker.close()
    rows = [skipped(f"{name} beside {kind}", unable[kind]) if kind in unable else
            measured(name, kind, bytes_, theirs[work], mine[kind], memcpy)
            for work, name, bytes_, _, beside in works for kind in beside]
    return rows, worker.version


def machine(options):
    def first(path, key):
        try:
            with open(path) as file:
                return next((line.split(":", 1)[1].strip() for line in file if line.startswith(key)), "")
        except OSError:
            return ""
    git = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         text=True, check=False).stdout.strip()
    changed = subprocess.run(["git", "-C", HERE, "status", "--porcelain", "-uno"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()
    return {"date": datetime.date.today().isoformat(), "commit": git + (" and changes" if changed else ""),
            "processor": first("/proc/cpuinfo", "model name") or platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory": first("/proc/meminfo", "MemTotal"), "system": platform.release(),
            "load": round(os.getloadavg()[0], 1), "python": platform.python_version(), "command": options.command}


def page(rows, about, versions, options, mib, place):
    busy = about["others"] > others.BUSY
    machine = (f"{about['date']}, commit {about['commit']}: {about['processor']}, {about['cores']} cores, "
               f"{about['memory']}, Linux {about['system']}, load {about['load']} when it began, "
               f"others took {100 * about['others']:.0f} % of the machine. "
               f"Python {about['python']}; {'; '.join(versions)}.")
    turns = str(turns_of(options, None)) + "".join(f" ({name}: {turns_of(options, name)})" for name in MORE_TURNS
                                                   if turns_of(options, name) != turns_of(options, None))
    what = (f"{options.side} x {options.side} f32, {RANKS} ranks, rows to columns; with \"blocks\", blocks of 64 x 64 to "
            f"blocks of 96 x 96, block-cyclic over 2 x 2 ranks. Checkpoints of {mib} MiB in {place}, page cache warm. GB/s "
            f"are bytes of the tensor or checkpoint over time; medians of {turns} turns, in which theirs, ours and "
            "a straight copy by all cores follow one another. Numbers of turns and of ranks, as all of it: "
            "build/peers.json." + (" Others kept the machine busy: all rates are low, and those of peers that are "
                                   "processes lower than of threads." if busy else ""))
    return "\n".join(["# Peers", "", textwrap.fill(machine, 118), "", textwrap.fill(what, 118), "Made by:", "",
                      f"    {about['command']}", "", table(rows)])


def main():
    names = ["numpy", "mpi", "scalapack", "costa", "jax", "torch", "dcp", "gpu", "m2n"]
    parser = argparse.ArgumentParser(prog="./run peers", description="Measures the peers of the field and ours in turns.")
    parser.add_argument("--quick", action="store_true", help="a small tensor and few turns: does it work?")
    parser.add_argument("--only", metavar="NAME,...", help=f"these alone: {', '.join(names)}")
    parser.add_argument("--side", type=int, help=f"rows and columns of the tensor, a multiple of {RANKS} (default {SIDE}; quick 512)")
    parser.add_argument("--turns", type=int, help=f"measured turns (default {TURNS}, mpi {MORE_TURNS['mpi']}; quick 1)")
    for name in ("build", "python", "torch-python", "json", "page"):  # by ./run
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("only", "side", "turns")}
    whole = not (options.quick or options.only or options.side or options.turns)
    only = options.only.split(",") if options.only else names
    options.side = options.side or (512 if options.quick else SIDE)
    if set(only) - set(names):
        parser.error(f"no peer '{sorted(set(only) - set(names))[0]}'; there are {', '.join(names)}")
    turns = turns_of(options, None)
    if options.side < RANKS or options.side % RANKS or turns < 1:
        parser.error(f"side {options.side}, turns {turns}: a multiple of {RANKS}, and 1 or more")
    options.command = " ".join(["./run peers", *(["--quick"] if options.quick else []),
                                *(f"--{name} {value}" for name, value in given.items() if value)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made in memory goes, and workers end
    mib = 64 if options.quick else 512
    about, rows, versions, before = machine(options), [], [], others.used()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 3 * mib << 20 else options.build
    with tempfile.TemporaryDirectory(prefix="reshard-peers.", dir=memory) as directory:
        ours = Ours(options.build, options.side, mib, directory)
        for name, (command, works) in groups(options, directory, mib).items():
            if name not in only:
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                if name == "costa":
                    command.append(costa_library(os.path.join(options.build, "peers-costa")))
                more, version = measure(command, works, ours, turns_of(options, name), os.path.join(directory, "log"))
                versions += [version] if version not in versions else []
                rows += more
            except (Skipped, Lacking) as reason:
                rows += [skipped(work[1], str(reason)) for work in works]
    rows += gpu_rows(options, RANKS, only)
    about["others"] = others.share(before, others.used())
    place = "tmpfs" if memory == "/dev/shm" else "the build directory"
    text = page(rows, about, versions or ["no peer here"], options, mib, place)
    print(table(rows), end="")
    if about["others"] > others.BUSY:
        print(others.words(about["others"]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"version": 1, "machine": about, "peers": versions, "side": options.side, "rows": rows}, file, indent=1)
    if options.page and whole:
        with open(options.page, "w") as file:
            file.write(text)
    sys.exit(0 if any("skipped" not in row for row in rows) else 77)


if __name__ == "__main__":
    main()
