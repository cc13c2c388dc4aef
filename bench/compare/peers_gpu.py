"""The rows of peers.py for a GPU that all ranks share: PyTorch's operations, CUB; NCCL M2N, which needs several GPUs."""

import json
import os
import re
import subprocess
import tempfile

from peers_table import measured, skipped

TORCH, CUB, M2N = "PyTorch on a GPU, split and cat", "cub::DeviceMemcpy", "NCCL M2N"


def gpus():
    try:
        done = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def run(command):
    """Returns what it prints, or raises RuntimeError with its last line."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"{os.path.basename(command[0])}: {error.strerror}") from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stdout.splitlines() if line.strip()] or ["nothing said"]
        raise RuntimeError(said[-1].removeprefix("skipped: ")[:200])
    return done.stdout


def torch_rows(text, bytes_of, memcpy_gbps, ranks):
    """From the lines of reshard_torch_gpu.py, "N x N f32...: PyTorch T us, ours T us, ..."."""
    rows = []
    for side, how, theirs, ours in re.findall(r"^(\d+) x \d+ f32(.*): PyTorch ([\d.]+) us, ours ([\d.]+) us", text, re.MULTILINE):
        gbps = [bytes_of(int(side)) / 1e3 / float(us) for us in (theirs, ours)]
        rows.append(measured(f"{TORCH}, {side} x {side}", f"execute{how}", bytes_of(int(side)), gbps[:1], gbps[1:], [memcpy_gbps],
                             "cuda", ranks))
    return rows


def cub_rows(report):
    """From the JSON of reshard_gpu bench: the batches of contiguous boxes."""
    return [measured(f"{CUB}, {row['name']}", "batch of boxes", row["bytes"],
                     *([row["bytes"] / 1e3 / row[time]] for time in (CUB, "time_us", "memcpy_us")), "cuda", 1)
            for row in report["rows"] if row.get(CUB, 0) > 0]


def gpu_rows(options, ranks, only):
    number, rows = gpus(), []
    if "gpu" in only and number == 0:
        rows += [skipped(name, "no GPU here") for name in (TORCH, CUB)]
    elif "gpu" in only:
        program = os.path.join(options.build, "reshard")
        with tempfile.TemporaryDirectory() as directory:
            report = os.path.join(directory, "report.json")
            try:
                run([program, "bench", "--device", "cuda", "--shape", f"{options.side}x{options.side}", "--src", "chunk(0)",
                     "--dst", "chunk(1)", "--ranks", str(ranks), "--json", report])
                with open(report) as file:
                    memcpy = json.load(file)["rows"][0]["memcpy_gbps"]
                script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reshard_torch_gpu.py")
                rows += torch_rows(run([options.torch_python, script, program, str(options.side)]), lambda n: 4 * n * n, memcpy,
                                   ranks)
            except RuntimeError as reason:
                rows.append(skipped(TORCH, str(reason)))
            try:
                run([os.path.join(options.build, "reshard_gpu"), "bench", "--json", report])
                with open(report) as file:
                    found = cub_rows(json.load(file))
                rows += found or [skipped(CUB, "not built in: no CUB where the kernels were compiled")]
            except RuntimeError as reason:
                rows.append(skipped(CUB, str(reason)))
    if "m2n" in only:
        rows.append(skipped(M2N, f"its ranks need a GPU each, {number} of which {'is' if number == 1 else 'are'} here" if number < 2
                            else f"{number} GPUs are here, but the work for its package is not written"))
    return rows
