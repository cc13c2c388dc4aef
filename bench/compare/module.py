"""The Python module beside C and the packages of the field: each figure is a ratio, or a difference, of one run.

usage: PYTHONPATH=build/python PYTHON bench/compare/module.py [--build build] [--torch-python PYTHON] [--gib 2] [--wheel PLAIN CUDA] [OUT.md]

Pairs take turns, and a figure is the median over them. torch's rows need an interpreter with torch; without one they say so.
"""

import argparse
import datetime
import gc
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import reshard

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
EXAMPLES = os.path.join(ROOT, "python", "examples")
rows = []


def row(what, goal, figure, good):
    rows.append((what, goal, figure, "met" if good else "missed" if good is False else ""))
    print(f"{what}: {figure} (goal {goal})", flush=True)


def once(call, times=1, clock=time.perf_counter):
    begin = clock()
    for _ in range(times):
        call()
    return (clock() - begin) / times


def turns(calls, n=9, times=1):
    """The median time of each call; they take turns."""
    taken = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(n):
        for list_, call in zip(taken, calls):
            list_.append(once(call, times))
    return [statistics.median(t) for t in taken]


def run(command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


# --- Calls -----------------------------------------------------------------------------------------------------------

def calls(build):
    comm, one = reshard.local(1), reshard.Layout("rank(0)", (16,), 1)
    empty = reshard.Layout("rank(0)", (0,), 1)
    nothing = np.zeros(0, "f4")
    transfer = reshard.Transfer(reshard.Plan(empty, empty, "f32", 0), comm, nothing, nothing.copy())
    micro = os.path.join(build, "reshard_micro")
    in_python = min(once(transfer.execute, 20000, time.thread_time) for _ in range(15)) * 1e6
    in_c = 0.0
    if os.access(micro, os.X_OK):
        in_c = min(float(re.search(r"us +([0-9.]+) us", run([micro, "--benchmark_filter=execute_nothing_direct"])).group(1)) for _ in range(3))
    row("`execute()` of nothing, beyond C's", "0.3 us", f"{in_python - in_c:.2f} us ({in_python:.2f} of Python, {in_c:.2f} of C)", in_python - in_c <= 0.3)
    mine = [np.arange(16, dtype="f4")]
    best, middle = (f([once(lambda: reshard.redistribute(mine, one, one, comm), 1000, time.thread_time) for _ in range(25)]) * 1e6 for f in (min, statistics.median))
    row("`redistribute` of a kept pair, 64 B of numpy, `local(1)`", "10 us", f"{middle:.1f} us, at best {best:.1f}", middle <= 10)
    comm.close()


def starts():
    def start(code):
        return once(lambda: run([sys.executable, "-B", "-c", code]), 1, spent)

    def spent():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    pairs = [(start("import numpy"), start("import numpy, reshard")) for _ in range(15)]
    beyond = statistics.median(b - a for a, b in pairs) * 1e3
    row("`import reshard` beyond numpy", "20 ms", f"{beyond:.1f} ms", beyond <= 20)


def cycles(directory, n=10000):
    """Memory, descriptors and references of transfers, results and checkpoints that are made and dropped."""
    comm, one = reshard.local(1), reshard.Layout("rank(0)", (16,), 1)
    source = np.arange(16, dtype="f4")
    reshard.write(os.path.join(directory, "small.safetensors"), {"x": source})

    def cycle():
        reshard.Transfer(reshard.Plan(one, one, "f32", 0), comm, source, np.zeros(16, "f4")).execute()
        reshard.redistribute([source], one, one, comm)
        with reshard.open(os.path.join(directory, "small.safetensors")) as c:
            c["x"].read()

    def state():
        gc.collect()
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10, len(os.listdir("/proc/self/fd")), sys.getrefcount(source), len(gc.get_objects())

    for _ in range(1000):
        cycle()
    before = state()
    for _ in range(n):
        cycle()
    after = state()
    grown = [b - a for a, b in zip(before, after)]
    row(f"{n:,} transfers, results and checkpoints made and dropped", "no growth",
        f"{grown[0]} KiB, {grown[1]} descriptors, {grown[2]} references, {grown[3]} objects", grown[0] < 1024 and grown[1:3] == [0, 0] and grown[3] < 10)
    comm.close()


# --- Files -----------------------------------------------------------------------------------------------------------

def files(directory, gib):
    from safetensors import safe_open

    path = os.path.join(directory, "model.safetensors")
    side, count = 4096, max(3, int(gib * (1 << 30)) // (64 << 20) // 3 * 3)  # 64 MiB each
    reshard.write(path, {f"w{i}": np.full((side, side), i, "f4") for i in range(count)})
    third = side // 3
    out = np.empty((side, side), "f4")

    def theirs(cut):
        with safe_open(path, "np") as f:
            for i in range(count):
                if cut == "whole" and i % 3 == 0:
                    out[...] = f.get_tensor(f"w{i}")
                elif cut == "rows":
                    out[:third] = f.get_slice(f"w{i}")[:third]
                elif cut == "columns":
                    out[:, :third] = f.get_slice(f"w{i}")[:, :third]

    own = np.empty((side, side), "f4")

    def ours(cut):
        with reshard.open(path) as f:
            for i in range(count):
                if cut == "whole" and i % 3 == 0:
                    f[f"w{i}"].read(own)
                elif cut == "rows":
                    f.read(f"w{i}", f"boxes(0:[0,0]+[{third},{side}])", 0, 1, out=[own[:third]])
                elif cut == "columns":
                    f.read(f"w{i}", f"boxes(0:[0,0]+[{side},{third}])", 0, 1, out=[columns])

    columns = np.empty((side, third), "f4")
    for cut, goal in (("whole", 1.0), ("rows", 1.5), ("columns", 1.2)):
        a, b = turns([lambda: theirs(cut), lambda: ours(cut)], 5)
        row(f"a third of {gib:g} GiB, {cut}, against `safe_open` and a copy", f"{goal} x", f"{a / b:.2f} x ({a * 1e3:.0f} / {b * 1e3:.0f} ms)", a / b >= goal)
    line = np.empty(side, "f4")
    with safe_open(path, "np") as f, reshard.open(path) as g:
        tensor = g["w1"]

        def copy_row():
            line[...] = f.get_slice("w1")[7]

        a, b = turns([copy_row, lambda: tensor[7]], 15, 300)
        row("a row, against `get_slice` and a copy", "0.9 x", f"{a / b:.2f} x ({a * 1e6:.1f} / {b * 1e6:.1f} us)", a / b >= 0.9)

    def map_theirs():  # it maps the file, and reads nothing
        with safe_open(path, "np") as f:
            f.get_slice("w1")

    def map_ours():
        with reshard.open(path) as g:
            g["w1"].map()

    a, b = turns([map_theirs, map_ours], 15, 20)
    row("open and `.map()`, against `safe_open`", "0.5 x", f"{a / b:.2f} x ({a * 1e6:.0f} / {b * 1e6:.0f} us)", a / b >= 0.5)


# --- Processes -------------------------------------------------------------------------------------------------------

def processes():
    if shutil.which("mpirun") is None or subprocess.run([sys.executable, "-c", "import mpi4py"], capture_output=True).returncode != 0:
        row("against `MPI_Alltoallw`, 4096 x 4096", "1.0 / 2.0 x", "no mpirun, or no mpi4py", None)
        return
    said = run(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "4", sys.executable, os.path.join(EXAMPLES, "alltoallw.py"), "4096"])
    own, shared = (float(x) for x in re.findall(r"([0-9.]+) x", said))
    row("against `MPI_Alltoallw`, 4096 x 4096, 4 processes: numpy's memory / `reshard.empty`", "1.0 / 2.0 x", f"{own:.2f} / {shared:.2f} x",
        own >= 1 and shared >= 2)


INTERRUPT = """
import os, signal, sys, threading, time
import reshard
comm = reshard.node()
if comm.rank == 1:  # does not come
    sys.stdin.read()
    os._exit(0)
def send():
    global sent
    time.sleep(0.3)  # the other thread waits by then
    sent = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send).start()
try:
    comm.barrier()
except KeyboardInterrupt:
    print(time.perf_counter() - sent)
"""


def interrupts():
    taken = []
    for i in range(9):
        ranks = [subprocess.Popen([sys.executable, "-c", INTERRUPT], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env={**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29000 + i)})
                 for r in range(2)]
        taken.append(float(ranks[0].stdout.read()))
        for process in ranks:
            process.communicate("")
    row("Ctrl-C ends a wait of the main thread: median, most of 9", "0.2 s", f"{statistics.median(taken):.3f}, {max(taken):.3f} s", max(taken) <= 0.2)


TORCH = """
import sys, time, statistics
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
import reshard.torch
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))

def placed(rows, columns):
    local = torch.rand(rows // mesh.size(), columns)
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

def spent(names, side, times):  # processor time of a call beyond an execute; of one process, as waits take some too
    tensors = {str(i): placed(side, side) for i in range(names)}
    comm = reshard.torch._comm(None)
    def find_pairs():
        pair_of = reshard.torch._pair_to(mesh, (Shard(1),), comm.size)
        return [pair_of(x._spec) for x in tensors.values()]
    pairs = find_pairs()
    parts = [reshard.torch._local(x) for x in tensors.values()]
    whole, inner = [], []
    for _ in range(9):
        begin = time.thread_time()
        for _ in range(times):
            reshard.torch._move(tensors, find_pairs(), comm, None, names > 1, None, None)
        whole.append((time.thread_time() - begin) / times)
        with reshard.Transfer(reshard.Plan([reshard.Entry(*p, "f32", n) for p, n in zip(pairs, tensors)], comm.rank), comm, parts,
                              [torch.from_numpy(reshard.empty(p[1].arrays(comm.rank)[0][0], "f32", comm)) for p in pairs]) as transfer:
            begin = time.thread_time()
            for _ in range(times):
                transfer.execute()
            inner.append((time.thread_time() - begin) / times)
    return (statistics.median(whole) - statistics.median(inner)) * 1e6

if mesh.size() == 1:
    print("figures", spent(1, 512, 200), spent(100, 64, 20) / 100)
    dist.destroy_process_group()
    sys.exit()
x = placed(8192, 8192)
taken = {"ours": [], "theirs": []}
for _ in range(4):
    for name in taken:
        dist.barrier()
        begin = time.perf_counter()
        moved = reshard.torch.redistribute(x, mesh, [Shard(1)]) if name == "ours" else x.redistribute(mesh, [Shard(1)])
        dist.barrier()
        taken[name].append(time.perf_counter() - begin)
        del moved
ours, theirs = (statistics.median(t[1:]) for t in taken.values())
if dist.get_rank() == 0:
    print("figures", theirs / ours)
reshard.torch.close()
dist.destroy_process_group()
"""


def with_torch(python, directory):
    alone = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    launch = [*alone[:-1], "4"]
    program = os.path.join(directory, "torch_turns.py")
    with open(program, "w") as f:
        f.write(TORCH)
    # Processes differ by a factor of two, each by where its memory came to lie.
    five = [re.search(r"figures (\S+) (\S+)", run([*alone, program])).groups() for _ in range(5)]
    one, each = (statistics.median(float(x) for x in column) for column in zip(*five))
    ratio = float(re.search(r"figures (\S+)", run([*launch, program])).group(1))
    row("torch, kept pair, 1 MiB: processor time beyond an execute into the same kind of storage, without `from_local`, of one process, the median of five", "30 us", f"{one:.0f} us", one <= 30)
    row("the same for each tensor of 100", "10 us", f"{each:.1f} us", each <= 10)
    row("8192 x 8192 f32, Shard(0) to Shard(1), against `DTensor.redistribute` over gloo", "10 x", f"{ratio:.1f} x", ratio >= 10)
    said = run([*launch, os.path.join(EXAMPLES, "fsdp_to_tp.py")])
    scene = [float(x) for x in re.findall(r"([0-9.]+) x\n", said)]
    row("FSDP2 + TP to TP-4 / to 2 x TP-2, against `full_tensor` and cut", "5 x", " / ".join(f"{x:.1f}" for x in scene) + " x", min(scene) >= 5)


def wheels(paths):
    plain, cuda = (os.stat(path).st_size / (1 << 20) for path in paths)
    row("wheel without CUDA / with 3 architectures", "2.5 / 11 MiB", f"{plain:.2f} / {cuda:.2f} MiB", plain <= 2.5 and cuda <= 11)


def page(out, load):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True).stdout.strip()
    lines = ["# The Python module", "",
             f"{datetime.date.today()}, commit {commit}, Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, load average "
             f"{load[0]:.1f} before it and {os.getloadavg()[0]:.1f} after.",
             "Pairs take turns in one run; a figure is the median over the turns. Calls of one process and imports are in processor",
             "time. `bench/compare/module.py` writes this.", "",
             "| what | goal | figure | |", "| --- | ---: | ---: | --- |", *(f"| {' | '.join(r)} |" for r in rows)]
    with open(out, "w") as f:
        f.write("\n".join(lines) + "\n")


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--build", default=os.path.join(ROOT, "build"))
    parse.add_argument("--torch-python", default=os.environ.get("RESHARD_TEST_PYTHON"))
    parse.add_argument("--gib", type=float, default=2)
    parse.add_argument("--wheel", nargs=2, metavar=("PLAIN", "CUDA"), help="wheels repaired and stripped by auditwheel")
    parse.add_argument("out", nargs="?")
    args = parse.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as directory:
        calls(args.build)
        starts()
        interrupts()
        processes()
        if args.torch_python:
            with_torch(args.torch_python, directory)
        files(directory, args.gib)
        cycles(directory)
    if args.wheel:
        wheels(args.wheel)
    if args.out:
        page(args.out, load)


main()
