#!/usr/bin/env bash
# The bash completion that the program prints knows every command, every option of every command, and their words.
. "$(dirname "$0")/common.bash"
expect 0 completion
cp out script
# shellcheck source=/dev/null
. ./script || fault 'bash cannot read the completion'

# completes EXPECTED WORD...: what completes the last of the words, one line each
completes() {
  local expected=$1 found
  COMP_WORDS=(reshard "${@:2}")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _reshard
  found=$(printf '%s\n' ${COMPREPLY[@]+"${COMPREPLY[@]}"} | sort)
  checks=$((checks + 1))
  [ "$found" = "$expected" ] || fault "reshard ${*:2}: completed by [$found], expected [$expected]"
}

expect 0 --help
commands=$(sed -nE 's/^  ([a-z]+) +[a-z].*/\1/p' out | grep -v '^reshard$')
[ "$(wc -l <<<"$commands")" = 7 ] || fault "not 7 commands: $commands"
completes "$(printf '%s\n' "$commands" help --help --version | sort)" ''
completes bench help be
for command in $commands; do
  expect 0 "$command" --help
  sed -n '/^options:/,/^exit status/p' out |
    sed -nE 's/^  (-.), (--[a-z_-]+).*/\1\n\2/p; t; s/^  (--?[a-zA-Z_-]+).*/\1/p' | sort >options
  [ -s options ] || fault "$command has no options"
  completes "$(cat options)" "$command" -
  completes "$(grep '^--' options)" "$command" --
done
completes $'cpu\ncuda' plan --device ''
completes cuda bench --shape 4x4 --device cu
completes $'auto\ndirect\nmixed\npacked' verify --path ''
completes --shape trace --shap
completes '' convert model # files, by bash itself
completes '' plan --shape ''
finish
