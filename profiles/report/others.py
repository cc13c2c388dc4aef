"""How much of the machine other processes take while something is measured."""
import os
import resource

BUSY = 0.05  # others' share of the machine from which on it is busy


def used():
    """Seconds so far: of all cores that this process may use; not idle; of this process and of children that ended."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    total = busy = 0
    with open("/proc/stat") as file:
        for line in file:
            name, *ticks = line.split()
            if name in cores:
                ticks = [int(tick) for tick in ticks[:8]]  # user nice system idle iowait irq softirq steal
                total += sum(ticks)
                busy += sum(ticks) - ticks[3] - ticks[4]
    second = os.sysconf("SC_CLK_TCK")
    own = sum(part.ru_utime + part.ru_stime for part in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
    return total / second, busy / second, own


def share(begin, end):
    """Others' share of the machine between two answers of used()."""
    total, busy, own = (b - a for a, b in zip(begin, end))
    return round(max(0.0, min(1.0, (busy - own) / total)), 3) if total > 0 else 0.0


def words(taken):
    """A sentence where the machine was busy, or nothing."""
    return f"The machine was busy: other processes took {100 * taken:.0f} % of it." if taken > BUSY else ""
