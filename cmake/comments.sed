# Makes Doxygen's comments of ours: the first one is the file's, one on a line of its own is of what follows, one behind
# code of what stands before it.
/^[[:space:]]*\/\* ---.*\*\/$/d
# Lines that are indented by four are shown as they are.
/^[[:space:]]*\*     /{
  s/\*     /*         /
  b
}
# Elsewhere in comments the characters that are commands to Doxygen stand for themselves.
/^[[:space:]]*\/\?\*\|\/\*/{
  s/`/"/g
  s/[\\@"]/\\&/g
  s/\([^#a-z]\)\([<>#%]\)/\1\\\2/g
}
1s,^/\* ,/** @file\n * ,
s,^\([[:space:]]*\)/\*\([^*]\),\1/**\2,
s,\([^[:space:]][[:space:]]*\)/\*\([^*/]\),\1/**<\2,
