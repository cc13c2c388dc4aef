# A flame graph from what perf samples.
#   -v kind=fold     `perf script -F comm,tid,period,ip,sym` to lines "PROGRAM;OUTERMOST;...;INNERMOST PERIOD", one a stack;
#                    frames of the kernel end in "_[k]"
#   -v kind=picture  such lines, sorted, to a picture: the width of a box is the processor's time in it and what it calls;
#                    -v title=TEXT
function take(    i, stack) { # counts the sample that was read
  if (program == "" || frames == 0)
    return
  stack = program
  for (i = frames; i > 0; i--)
    stack = stack ";" frame[i]
  total[stack] += period
  frames = 0
}
kind == "fold" && /^[^ \t]/ { # PROGRAM TID PERIOD:
  take()
  frames = 0
  period = $NF
  sub(/:.*/, "", period)
  program = $0
  sub(/[ \t]+[0-9]+[ \t]+[0-9]+:?[ \t]*$/, "", program)
  gsub(/;/, ":", program)
}
kind == "fold" && /^[ \t]+[0-9a-f]+ / { # ADDRESS FUNCTION, innermost first
  name = $0
  sub(/^[ \t]+[0-9a-f]+ /, "", name)
  sub(/\+0x[0-9a-f]+$/, "", name)
  sub(/\.(constprop|isra|part|cold)\..*/, "", name)
  gsub(/;/, ":", name)
  if (length($1) == 16 && $1 ~ /^ffff/)
    name = name "_[k]"
  else if (name == "[unknown]" && frame[frames] == name)
    next # one for all that no debug information is there for
  frame[++frames] = name
}

kind == "picture" && match($0, / [0-9]+$/) {
  stack_of[++stacks] = "all;" substr($0, 1, RSTART - 1)
  weight[stacks] = substr($0, RSTART + 1) + 0
  sum += weight[stacks]
  depth = split(stack_of[stacks], part, ";")
  deepest = depth > deepest ? depth : deepest
}

function escaped(words) {
  gsub(/&/, "\\&amp;", words)
  gsub(/</, "\\&lt;", words)
  gsub(/>/, "\\&gt;", words)
  gsub(/"/, "\\&quot;", words)
  return words
}
function text(x, y, size, colour, words) {
  printf "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" fill=\"%s\">%s</text>\n", x, y, size, colour, escaped(words)
}
function colour_of(name,    i, hash) { # the same for the same name
  if (name ~ /_\[k\]$/)
    return kernel
  for (i = 1; i <= length(name); i++)
    hash = (hash * 31 + index(letters, substr(name, i, 1))) % 1009
  return sprintf("#%02x%02x%02x", 232 + hash % 20, 130 + hash % 90, 60 + hash % 40)
}
function draw(level, begin, end,    x, y, width, name, shown) { # a box of a frame that ends
  x = left + (right - left) * begin / sum
  width = (right - left) * (end - begin) / sum
  if (width < 0.3)
    return
  name = open_name[level]
  in_kernel += name ~ /_\[k\]$/
  in_program += name !~ /_\[k\]$/
  y = bottom - level * row
  shown = name
  sub(/_\[k\]$/, "", shown)
  printf "<g><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>", \
    x, y, width, row - 1, colour_of(name)
  printf "<title>%s: %.2f %%</title>", escaped(shown), 100 * (end - begin) / sum
  letters_fit = int((width - 6) / 6.3)
  if (letters_fit >= 3)
    text(x + 3, y + 12, 11, "#1f2933", length(shown) <= letters_fit ? shown : substr(shown, 1, letters_fit - 2) "..")
  print "</g>"
}
function close_to(level) { # ends the frames from the innermost one down to this level, exclusive
  for (; open > level; open--)
    draw(open, open_at[open], at)
}

END {
  if (kind == "fold") {
    take()
    for (stack in total)
      printf "%s %.0f\n", stack, total[stack]
    exit
  }
  left = 24; right = 1256; row = 17; kernel = "#8db4d8"
  letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
  bottom = 84 + (deepest + 1) * row
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1280\" height=\"%d\" viewBox=\"0 0 1280 %d\"", bottom + 48, bottom + 48
  print " font-family=\"Helvetica, Arial, sans-serif\">"
  printf "<rect width=\"1280\" height=\"%d\" fill=\"#ffffff\"/>\n", bottom + 48
  text(left, 34, 16, "#1f2933", length(title) > 140 ? substr(title, 1, 138) ".." : title)
  text(left, 56, 12, "#616e7c", "processor time by stack, callers below; " sprintf("%d stacks", stacks))
  for (i = 1; i <= stacks; i++) {
    n = split(stack_of[i], part, ";")
    same = 0
    while (same < open && same < n && open_name[same + 1] == part[same + 1])
      same++
    close_to(same)
    while (open < n) {
      open++
      open_name[open] = part[open]
      open_at[open] = at
    }
    at += weight[i]
  }
  close_to(0)
  x = left
  if (in_program) {
    printf "<rect x=\"%d\" y=\"%d\" width=\"26\" height=\"13\" fill=\"#f0a050\"/>\n", x, bottom + 14
    text(x + 34, bottom + 24, 11, "#616e7c", "program and libraries")
    x += 180
  }
  if (in_kernel) {
    printf "<rect x=\"%d\" y=\"%d\" width=\"26\" height=\"13\" fill=\"%s\"/>\n", x, bottom + 14, kernel
    text(x + 34, bottom + 24, 11, "#616e7c", "kernel")
  }
  print "</svg>"
}
