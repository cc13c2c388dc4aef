# Samples of a row of figures, and when there are enough of them; sourced.

# settle KIND FILE: of samples, a number a line, prints "FIGURE SPREAD", and ends with 0 where the row is settled: there
# are 4 or more, and those that count lie within 2 %. A `time` is the second of the least three, which count: what
# disturbs it only makes it longer. A `ratio` is the median, and the middle half counts.
settle() {
  sort -g "$2" | awk -v kind="$1" '
    /[0-9]/ { v[++n] = $1 }
    END {
      if (n < 1) exit 1
      low = kind == "time" ? 1 : int(n / 4) + 1
      high = kind == "time" ? (n < 3 ? n : 3) : n + 1 - low
      middle = kind == "time" ? v[n < 2 ? 1 : 2] : (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2
      spread = middle == 0 ? 1 : (v[high] - v[low]) / (middle < 0 ? -middle : middle) # a difference may be negative
      print middle, spread
      exit n < 4 || spread > 0.02
    }'
}

# show_figure UNIT: prints the figure of `settle` with 3 digits or more, and its spread in brackets.
show_figure() {
  awk -v unit="${1:+ $1}" '{
      digits = 2
      size = $1 < 0 ? -$1 : $1
      for (x = size; x >= 10 && digits > 0; x /= 10) digits--
      for (x = size; x < 1 && digits < 5; x *= 10) digits++
      printf "%.*f%s (%.1f %%)\n", digits, $1, unit, 100 * $2
    }'
}
