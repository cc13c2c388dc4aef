# Turns the raw page of `ncu --import FILE --page raw --csv --print-units base` into rows of a table. It has a line of
# names, one of units, and one for each launch.
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
function value(name, scale, form,    text) {
  text = name in at ? f[at[name]] : ""
  gsub(/,/, "", text)
  return text ~ /^[0-9.e+-]+$/ ? sprintf(form, text / scale) : "-"
}
/^"ID",/ {
  n = fields($0, head)
  for (i = 1; i <= n; i++)
    at[head[i]] = i
  next
}
/^"[0-9]+",/ && ("Kernel Name" in at) {
  delete f
  fields($0, f)
  kernel = f[at["Kernel Name"]]
  sub(/^void /, "", kernel)
  gsub(/<unnamed>::|\(anonymous namespace\)::/, "", kernel)
  if (match(kernel, /[A-Za-z0-9_>]\(/)) # the parameters; an argument of a template may be (bool)1
    kernel = substr(kernel, 1, RSTART)
  rate = value("dram__bytes.sum.per_second", 1e9, "%.0f")
  if (rate == "-" && value("dram__bytes_read.sum.per_second", 1, "%f") != "-")
    rate = sprintf("%.0f", value("dram__bytes_read.sum.per_second", 1e9, "%f") + value("dram__bytes_write.sum.per_second", 1e9, "%f"))
  peak = value("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1, "%.1f")
  busy = value("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1, "%.1f")
  share = rate != "-" && memcpy > 0 ? sprintf("%.2f", rate / memcpy) : "-"
  flight = rate != "-" && sms > 0 ? sprintf("%.0f", rate * 700 / sms / 1024) : "-" # GB/s x ns are bytes
  bound = peak == "-" ? "-" : peak + 0 >= 75 ? "DRAM" : busy != "-" && busy + 0 >= 60 ? "instructions" : "latency"
  grid = f[at["Grid Size"]]
  gsub(/[() ]/, "", grid)
  sub(/(,1)+$/, "", grid)
  printf "| `%s` | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", kernel, grid,
    value("gpu__time_duration.sum", 1e3, "%.1f"), rate, share, peak, flight, bound,
    value("sm__warps_active.avg.pct_of_peak_sustained_active", 1, "%.0f"), value("launch__registers_per_thread", 1, "%.0f")
}
