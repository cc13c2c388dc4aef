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


def torch_rows(text, memcpy_gbps, ranks):
    """From the lines of reshard_torch_gpu.py, "reshard...  T us  bytes=N ours_us=T ..."."""
    rows = []
    for how, theirs, bytes_, ours in re.findall(r"^reshard(.*?) +([\d.]+) us +bytes=(\d+) ours_us=([\d.]+)", text, re.MULTILINE):
        side = int((int(bytes_) / 4) ** 0.5)
        gbps = [int(bytes_) / 1e3 / float(us) for us in (theirs, ours)]
        rows.append(measured(f"{TORCH}, {side} x {side}", f"execute{how}", int(bytes_), gbps[:1], gbps[1:], [memcpy_gbps], "cuda",
                             ranks))
    return rows


def cub_rows(report):
    """From the JSON of reshard_micro: the batches of contiguous boxes."""
    rows = []
    for row in report["benchmarks"]:
        said = dict(word.split("=") for word in row.get("label", "").split())
        if "cub_us" in said:
            rows.append(measured(f"{CUB}, {row['name'].split('/iterations')[0]}", "batch of boxes", int(said["bytes"]),
                                 *([int(said["bytes"]) / 1e3 / float(us)]
                                   for us in (said["cub_us"], row["real_time"], said["memcpy_us"])), "cuda", 1))
    return rows


def gpu_rows(options, ranks, only):
    number, rows = gpus(), []
    if "gpu" in only and number == 0:
        rows += [skipped(name, "no GPU here") for name in (TORCH, CUB)]
    elif "gpu" in only:
        program, micro = (os.path.join(options.build, name) for name in ("reshard", "reshard_micro"))
        with tempfile.TemporaryDirectory() as directory:
            report = os.path.join(directory, "report.json")
            try:
                run([program, "bench", "--device", "cuda", "--shape", f"{options.side}x{options.side}", "--src", "chunk(0)",
                     "--dst", "chunk(1)", "--ranks", str(ranks), "--json", report])
                with open(report) as file:
                    memcpy = json.load(file)["rows"][0]["memcpy_gbps"]
                script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reshard_torch_gpu.py")
                rows += torch_rows(run([options.torch_python, script, program, micro, str(options.side)]), memcpy, ranks)
            except RuntimeError as reason:
                rows.append(skipped(TORCH, str(reason)))
            try:
                run([micro, "--benchmark_filter=^gpu_copy_(boxes|spans)/", f"--benchmark_out={report}"])
                with open(report) as file:
                    rows += cub_rows(json.load(file))
            except RuntimeError as reason:
                rows.append(skipped(CUB, str(reason)))
    if "m2n" in only:
        rows.append(skipped(M2N, f"its ranks need a GPU each, {number} of which {'is' if number == 1 else 'are'} here" if number < 2
                            else f"{number} GPUs are here, but the work for its package is not written"))
    return rows
