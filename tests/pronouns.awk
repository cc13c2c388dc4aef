# Counts the sentences of comments in C that begin with a pronoun, or with a word that stands for what was said before.
# The subject of a sentence is a noun: "The transfer is ...", not "It is ...". A sentence ends with a full stop, or with
# its paragraph or list item. What has no full stop, as the comment of a member, is none.
# usage: awk -v most=PERCENT [-v list=1] -f pronouns.awk FILE...    exit status 1: more of them than PERCENT of all;
#        list: prints each of them, else those of the worst files

function finish(    n, i, word, count, from) {
  n = split(text, word, " ")
  count = 0
  for (i = 1; i <= n; i++) {
    if (word[i] ~ /[[:alnum:]]/ && ++count == 1) from = i
    if (word[i] !~ /[.!?]["')\]]*$/ && i < n) continue
    if (word[i] ~ /^(e\.g|i\.e|cf|vs|No)\.$/ && i < n) continue
    if (count > 1 && word[i] ~ /[.!?]["')\]]*$/) {
      all++
      if (word[from] ~ /^(It|They|This|That|These|Those|There|Such|Its|Their|He|She|Where|So|Else|Then)[,;:]?$/) {
        found++
        of[file]++
        what = sprintf("%s:%d: %s %s %s %s ...", file, at[from], word[from], word[from + 1], word[from + 2], word[from + 3])
        said[file] = said[file] what "\n"
      }
    }
    count = 0
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

FNR == 1 {
  finish()
  file = FILENAME
  inside = 0
}
{ of_c($0) }
END {
  finish()
  share = all ? 100 * found / all : 0
  for (name in of)
    if (list || of[name] >= 3) printf "%s", said[name]
  printf "%d of %d sentences begin with a pronoun: %.1f %%, at most %s %%\n", found, all, share, most
  exit share > most
}
