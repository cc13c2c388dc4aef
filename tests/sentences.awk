# Prints each sentence of more than 25 words, with the line where it begins. It reads comments of C and CUDA, those of
# scripts, and Markdown but for its code and tables. A clause ends with a full stop, colon or semicolon, or with its
# paragraph or list item.
# usage: LC_ALL=C.UTF-8 awk -f sentences.awk FILE...    exit status 1: there is one

# Words have a letter or digit.
function finish(    n, i, word, count, from, start) {
  n = split(text, word, " ")
  count = 0
  for (i = 1; i <= n; i++) {
    if (count == 0) start = at[i]
    if (word[i] ~ /[[:alnum:]]/) count++
    if (count == 1 && from == 0) from = i
    if (word[i] !~ /[.!?;:]["')\]]*$/ && i < n) continue
    if (word[i] ~ /^(e\.g|i\.e|cf|vs|No)\.$/ && i < n) continue
    if (count > 25) {
      printf "%s:%d: %d words: %s %s %s %s ...\n", file, start, count, word[from], word[from + 1], word[from + 2], word[from + 3]
      bad = 1
    }
    count = from = 0
  }
  text = ""
  words = 0
}

# Adds a line of prose; list items and what is shown as it is end the paragraph.
function add(line,    n, i, word) {
  match(line, /^ */)
  if (sub(/^ *([-*+]|[0-9]+[.)]) /, "", line) || line ~ /^ *usage:/) finish()
  if (line ~ /[^ ]   +[^ ]/) { finish(); columns = RLENGTH } # a row of a table
  else if (RLENGTH < columns || line !~ /[[:alnum:]]/) { finish(); columns = 0 }
  n = split(line, word, " ")
  for (i = 1; i <= n; i++) at[words + i] = FNR
  words += n
  text = text " " line
}

# The comments of a line of C. inside: within one that began before.
function of_c(line,    rest, end) {
  for (;;) {
    if (inside) {
      end = index(line, "*/")
      rest = end ? substr(line, 1, end - 1) : line
      if (continued) sub(/^ *\* ?/, "", rest)
      if (rest ~ /^    /&& continued && starred) finish(); else add(rest)
      if (!end) { continued = 1; return }
      finish()
      inside = 0
      line = substr(line, end + 2)
      continue
    }
    if (!match(line, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|\/\*|\/\//)) break
    rest = substr(line, RSTART, RLENGTH)
    if (rest == "/*") {
      finish()
      starred = substr(line, 1, RSTART - 1) ~ /^ *$/
      inside = 1
      continued = 0
      plain = 0
      line = substr(line, RSTART + 2)
    } else if (rest == "//") {
      if (substr(line, 1, RSTART - 1) !~ /^ *$/) finish()
      add(substr(line, RSTART + 2))
      return
    } else line = substr(line, RSTART + RLENGTH)
  }
  finish() # a line without a comment that goes on
}

function of_script(line) {
  if (line ~ /^ *#[^!]/) { sub(/^ *#+/, "", line); add(line); return }
  finish()
  if (match(line, /[ \t]# /)) { add(substr(line, RSTART + 3)); finish() }
}

function of_markdown(line) {
  if (line ~ /^ *```/) { finish(); fenced = !fenced; return }
  if (fenced || line ~ /^(\||#|    )/ || line ~ /^ *$/) { finish(); return }
  gsub(/\]\([^)]*\)/, "", line)
  add(line)
}

FNR == 1 {
  finish()
  file = FILENAME
  inside = fenced = 0
}
FILENAME ~ /\.(c|h|cu|cuh|cc|cpp|hpp)$/ { of_c($0); next }
FILENAME ~ /\.md$/ { of_markdown($0); next }
{ of_script($0) }
END { finish(); exit bad }
