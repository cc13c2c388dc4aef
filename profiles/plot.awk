# Draws tables of `reshard bench` over sizes, a file sweep-PATH.txt for a path, as SVG: GB/s and share of memcpy over
# size. It is on white, so that it can be read on any background. -v title=TEXT
function text(x, y, anchor, size, colour, words) {
  gsub(/&/, "\\&amp;", words)
  gsub(/</, "\\&lt;", words)
  gsub(/>/, "\\&gt;", words)
  printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"%s\">%s</text>\n", x, y, anchor, size, colour, words
}
function line(x1, y1, x2, y2, colour, width) {
  printf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%s\"/>\n", x1, y1, x2, y2, colour, width
}
function open_svg(width, height, heading) {
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\">\n", width, height, width, height
  printf "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height
  text(24, 30, "start", 16, ink, heading)
  text(24, 50, "start", 12, grey, title)
}
function size_text(bytes,    i) {
  for (i = 1; bytes >= 1024 && i < 5; i++)
    bytes /= 1024
  return sprintf("%.4g %s", bytes, substr("B  KiBMiBGiBTiB", 3 * i - 2, 3))
}

# --- Throughput over size ----------------------------------------------------------------------------------------------------
function x_of(bytes) { return left + (right - left) * (most > least ? log(bytes / least) / log(most / least) : 0.5) }
function y_of(value) { return bottom - (bottom - top) * value / highest }
function draw_axis(label, step,    v) { # from 0 to highest; sizes below
  for (v = 0; v <= highest * 1.001; v += step) {
    line(left, y_of(v), right, y_of(v), pale, 1)
    text(left - 8, y_of(v) + 4, "end", 11, grey, sprintf("%.4g", v))
  }
  printf "<text transform=\"translate(24 %.1f) rotate(-90)\" text-anchor=\"middle\" font-size=\"12\" fill=\"%s\">%s</text>\n", (top + bottom) / 2, ink, label
}
function draw_curve(name, list, value, unit,    n, b, i, path) {
  n = split(list, b, " ")
  for (i = 1; i <= n; i++)
    path = path sprintf(" %.1f,%.1f", x_of(b[i]), y_of(value[name, b[i]]))
  printf "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", substr(path, 2), colour[name]
  for (i = 1; i <= n; i++)
    printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s, %s: %s %s</title></circle>\n", x_of(b[i]), y_of(value[name, b[i]]), colour[name], name, size_text(b[i]), value[name, b[i]], unit
}
function round_step(value,    step) { # a step of which 3 to 7 reach it
  for (step = 1; step * 7 < value; step *= 10)
    if (step * 2 * 7 >= value) return step * 2
    else if (step * 5 * 7 >= value) return step * 5
  return step
}
function draw_throughput(    p, i, n, b, step) {
  left = 90; right = 830
  open_svg(860, 640, "Rows to columns of 4 ranks on one GPU")
  for (p = 0; p <= paths; p++)
    if (path[p] in sizes) {
      text(560 + 100 * p, 30, "start", 12, ink, path[p])
      line(530 + 100 * p, 26, 554 + 100 * p, 26, colour[path[p]], 2)
    }
  if (most == 0)
    text(430, 320, "middle", 14, ink, "not measured")
  else {
    step = round_step(fastest)
    highest = step * (int(fastest / step) + 1)
    top = 80; bottom = 380
    draw_axis("GB/s of the tensor (each byte is read and written)", step)
    for (p = 0; p <= paths; p++)
      if (path[p] in sizes) draw_curve(path[p], sizes[path[p]], speed, "GB/s")
    highest = widest > 1.2 ? widest : 1.2
    top = 420; bottom = 580
    draw_axis("share of memcpy's speed", 0.2)
    for (p = 1; p <= paths; p++)
      if (path[p] in sizes) draw_curve(path[p], sizes[path[p]], share, "of memcpy")
    n = split(sizes[path[0]], b, " ")
    for (i = 1; i <= n; i++)
      text(x_of(b[i]), 600, "middle", 11, grey, size_text(b[i]))
    text((left + right) / 2, 624, "middle", 12, ink, "size of the tensor")
  }
  print "</svg>"
}

BEGIN {
  ink = "#1f2933"; grey = "#616e7c"; pale = "#e4e7eb"
  path[0] = "memcpy"; path[1] = "direct"; path[2] = "packed"; paths = 2
  colour["memcpy"] = "#7b8794"; colour["direct"] = "#2f74b0"; colour["packed"] = "#d9720b"
}
$1 ~ /^[0-9]+$/ && NF >= 9 { # size count type time algbw busbw memcpy ratio wrong
  way = FILENAME ~ /packed/ ? "packed" : "direct"
  sizes[way] = sizes[way] " " $1
  speed[way, $1] = $5
  share[way, $1] = $8
  if (!(("memcpy", $1) in speed)) {
    sizes["memcpy"] = sizes["memcpy"] " " $1
    speed["memcpy", $1] = $7
  }
  for (i = 5; i <= 7; i += 2)
    if ($i > fastest) fastest = $i
  if ($8 > widest) widest = $8
  if (most == 0 || $1 < least) least = $1
  if ($1 > most) most = $1
}
END {
  draw_throughput()
}
