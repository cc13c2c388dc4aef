"""The table of peers.py, from rows: what was measured in turns, or why it was not."""

import statistics


def measured(peer, ours, bytes_, theirs_gbps, ours_gbps, memcpy_gbps, device="cpu", ranks=4):
    """A row of medians; each figure is a list, an entry a turn, in bytes of the tensor or checkpoint over seconds."""
    return {"peer": peer, "ours": ours, "device": device, "ranks": ranks, "bytes": bytes_,
            "gbps": statistics.median(theirs_gbps), "memcpy_gbps": statistics.median(memcpy_gbps),
            "ours_gbps": statistics.median(ours_gbps), "turns": len(theirs_gbps)}


def skipped(peer, reason):
    return {"peer": peer, "skipped": reason}


def figure(value):
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(rows):
    """Markdown: what was skipped stands at the end, with the reason in the place of the figures."""
    cells = [("peer", "GB/s", "of memcpy", "ours in the same run", "GB/s", "of memcpy", "ours / theirs")]
    cells += [(row["peer"], figure(row["gbps"]), figure(row["gbps"] / row["memcpy_gbps"]), row["ours"], figure(row["ours_gbps"]),
               figure(row["ours_gbps"] / row["memcpy_gbps"]), figure(row["ours_gbps"] / row["gbps"]))
              for row in rows if "skipped" not in row]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    words = (0, 3)

    def line(row):
        return "| " + " | ".join(f"{cell:<{w}}" if i in words else f"{cell:>{w}}"
                                 for i, (cell, w) in enumerate(zip(row, widths))) + " |"
    lines = [line(cells[0]), "| " + " | ".join("-" * w if i in words else "-" * (w - 1) + ":"
                                              for i, w in enumerate(widths)) + " |"]
    lines += [line(row) for row in cells[1:]]
    left = [row for row in rows if "skipped" in row]
    if left:
        width = max(7, *(len(row["peer"]) for row in left))
        lines += ["", f"| {'skipped':<{width}} | why |", f"| {'-' * width} | --- |"]
        lines += [f"| {row['peer']:<{width}} | {row['skipped'].replace('|', '/')} |" for row in left]
    return "\n".join(lines) + "\n"
