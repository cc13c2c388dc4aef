# Turns the output of `ncu --csv --metrics`, a line for a kernel's launch and metric, into rows of a table: a kernel, the number
# of its launches, the means of its metrics.
function fields(line, out,    n, i, c, quoted) { # CSV: quotes may hold commas
  n = 1
  out[1] = ""
  for (i = 1; i <= length(line); i++) {
    c = substr(line, i, 1)
    if (c == "\"")
      quoted = !quoted
    else if (c == "," && !quoted)
      out[++n] = ""
    else
      out[n] = out[n] c
  }
  return n
}
function mean(name, scale, format) { # of the kernel's launches
  return (kernel, name) in count ? sprintf(format, sum[kernel, name] / count[kernel, name] / scale) : "-"
}
/^"ID",/ {
  n = fields($0, head)
  for (i = 1; i <= n; i++)
    at[head[i]] = i
  next
}
("Metric Value" in at) && /^"[0-9]+",/ {
  fields($0, f)
  kernel = f[at["Kernel Name"]]
  sub(/^void /, "", kernel)
  if (match(kernel, /[A-Za-z0-9_>]\(/)) # the parameters; an argument of a template may be (bool)1
    kernel = substr(kernel, 1, RSTART)
  if (!(kernel in launches))
    order[++kernels] = kernel
  launches[kernel] += !seen[kernel, f[at["ID"]]]++
  value = f[at["Metric Value"]]
  gsub(/,/, "", value)
  sum[kernel, f[at["Metric Name"]]] += value
  count[kernel, f[at["Metric Name"]]]++
}
END {
  for (k = 1; k <= kernels; k++) {
    kernel = order[k]
    rate = mean("dram__bytes.sum.per_second", 1e9, "%.0f")
    peak = mean("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1, "%.1f")
    busy = mean("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1, "%.1f")
    share = rate != "-" && memcpy > 0 ? sprintf("%.2f", rate / memcpy) : "-"
    flight = rate != "-" && sms > 0 ? sprintf("%.0f", rate * 700 / sms / 1024) : "-" # GB/s x ns are bytes
    bound = peak == "-" ? "-" : peak + 0 >= 75 ? "DRAM" : busy != "-" && busy + 0 >= 60 ? "instructions" : "latency"
    printf "| %s | `%s` | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", what, kernel, launches[kernel],
      mean("gpu__time_duration.sum", 1e3, "%.1f"), rate, share, peak, flight, bound,
      mean("sm__warps_active.avg.pct_of_peak_sustained_active", 1, "%.0f"), mean("launch__registers_per_thread", 1, "%.0f")
  }
}
