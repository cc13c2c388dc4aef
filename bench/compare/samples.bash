# Samples of a row of figures, and when there are enough of them; sourced.

# settle KIND FILE [PACE]: of samples, a line each, prints "FIGURE SPREAD", and ends with 0 where the row is settled:
# there are 4 or more, and those that count lie within 2 %. A `time` is the second of the least three, which count:
# what disturbs it only makes it longer. Where the pace of the core stands behind it, it is what a core takes that runs
# at PACE, or at the best of these. A `difference` is that of two such times, a line, and settled when both are; its
# spread is the sum of theirs. A `ratio` is the median, and the middle half counts. Where the pace of what it is
# compared with stands behind it, the fastest quarter alone is looked at, 3 at least of 6: the machine was quiet
# there. These have at least nine tenths of PACE in a row that is settled. What else keeps a row from being settled
# stands behind the spread.
settle() {
  local first second moves=0
  if [ "$1" = difference ]; then
    first=$(settle time <(cut -d ' ' -f 1,3 "$2") "${3:-0}") || moves=1
    second=$(settle time <(cut -d ' ' -f 2,3 "$2") "${3:-0}") || moves=1
    printf '%s\n' "$first" "$second" | awk '
      NF > 1 { v[++n] = $1; spread[n] = $2; note = $3 " " $4 }
      END {
        beyond = v[1] - v[2]
        size = beyond < 0 ? -beyond : beyond
        if (n == 2) print beyond, (size == 0 ? 1 : (v[1] * spread[1] + v[2] * spread[2]) / size), note
      }'
    [ -n "$second" ] && [ "$moves" = 0 ]
    return
  fi
  sort -k 2,2gr "$2" | awk -v kind="$1" -v pace="${3:-0}" '
    function sort_values(n,  i, j, x) {
      for (i = 2; i <= n; i++) {
        x = v[i]
        for (j = i - 1; j > 0 && v[j] > x; j--) v[j + 1] = v[j]
        v[j + 1] = x
      }
    }
    /[0-9]/ { v[++n] = $1; paces[n] = $2; paced = NF > 1 }
    END {
      if (n < 1) exit 1
      if (kind == "time") {
        if (paced && pace == 0) pace = paces[1]
        for (i = 1; i <= n && paced; i++) v[i] *= paces[i] / pace
        paced = 0
      }
      note = n < (paced ? 6 : 4) ? "samples " n : ""
      if (paced) {
        n = n < 3 ? n : n < 12 ? 3 : int(n / 4)
        if (paces[n] < 0.9 * pace) note = sprintf("pace %.0f %%", 100 * paces[n] / pace)
      }
      sort_values(n)
      low = kind == "time" || paced ? 1 : int(n / 4) + 1
      high = kind == "time" ? (n < 3 ? n : 3) : n + 1 - low
      middle = kind == "time" ? v[n < 2 ? 1 : 2] : (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2
      spread = middle == 0 ? 1 : (v[high] - v[low]) / (middle < 0 ? -middle : middle) # a difference may be negative
      print middle, spread, note
      exit note != "" || spread > 0.02
    }'
}

# show_figure UNIT: prints the figure of `settle` with 3 digits or more. In brackets stands its spread, and what else
# `settle` has printed.
show_figure() {
  awk -v unit="${1:+ $1}" '{
      digits = 2
      size = $1 < 0 ? -$1 : $1
      for (x = size; x >= 10 && digits > 0; x /= 10) digits--
      for (x = size; x < 1 && digits < 5; x *= 10) digits++
      printf "%.*f%s (%.1f %%", digits, $1, unit, 100 * $2
      for (i = 3; i <= NF; i++) printf "%s%s", (i == 3 ? ", " : " "), $i
      print ")"
    }'
}
