#!/usr/bin/env bash
# Every system call of a conversion goes wrong in turn: status 1 with one line, or 0 where it has to be survived; OUT is
# as it was, or complete; nothing is left beside it; the next run works.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/files/conversions.bash" || exit 1
# Calls of a kind that each error is tried at, from the first to the last: an argument says how many, else 5.
most=$(awk -v scale="${RESHARD_TEST_SCALE:-1}" -v n="${1:-5}" 'BEGIN { n = int(n * scale); print n < 1 ? 1 : n }')
turn=0

# error numbers of Linux
EINTR=4 EIO=5 EAGAIN=11 EACCES=13 EINVAL=22 EMFILE=24 ENOSPC=28 ENOLCK=37 EOPNOTSUPP=95 EDQUOT=122

# Faults of each kind of call, and what must come of them: fails, survives, or either; and a kind of call that the
# file system lacks besides.
faults=(
  "pwrite fail $ENOSPC fails" "pwrite always $EIO fails" "pwrite fail $EDQUOT fails"
  "pwrite fail $EINTR survives" "pwrite short 0 survives" "pwrite shorts 0 survives"
  "write fail $ENOSPC fails" "write always $EIO fails" "write fail $EINTR survives" "write short 0 survives" \
    "write shorts 0 survives"
  "pread fail $EIO fails" "pread always $EIO fails" "pread fail $EINTR survives" "pread short 0 survives" \
    "pread shorts 0 survives"
  "read fail $EIO fails" "read fail $EINTR survives" "read short 0 survives" "read shorts 0 survives"
  "fallocate fail $ENOSPC fails" "fallocate fail $EINTR survives" "fallocate always $EOPNOTSUPP survives"
  "truncate fail $EIO fails" "truncate fail $EINTR either"
  "fsync fail $EIO fails" "fsync always $ENOSPC fails" "fsync fail $EINTR either"
  "renameat2 fail $EIO fails" "renameat2 always $EIO fails" "renameat2 always $EINVAL survives"
  "rename fail $EIO either renameat2"
  "mkdir fail $ENOSPC fails" "mkdir always $EACCES fails"
  "open fail $EMFILE either" "open always $EACCES either" "open fail $EINTR either"
  "close fail $EIO either" "close fail $EINTR survives"
  "unlink fail $EIO either" "unlink always $EACCES either"
  "stat fail $EIO either" "stat always $EACCES either"
  "list fail $EIO either" "lock always $ENOLCK either" "lock fail $EINTR either"
  "copy fail $EIO either" "copy always $EOPNOTSUPP survives"
  "thread fail $EAGAIN either" "thread always $EAGAIN either"
)

judge() { # LABEL KIND WANT HOW
  local limit
  case $status in
  0)
    complete || fault "$1: status 0, and OUT is not right"
    [ "$3" != fails ] || fault "$1: survived"
    ;;
  1)
    [ "$(wc -l <err)" = 1 ] && grep -q '^reshard: error: ' err || fault "$1: not one line: $(head -c 600 err)"
    [ ! -s out ] || fault "$1: output: $(head -c 300 out)"
    as_it_was || fault "$1: OUT is not as it was ($(cat err))"
    [ "$3" != survives ] || fault "$1: $(cat err)"
    ;;
  *) fault "$1: status $status: $(head -c 2000 err)" ;;
  esac
  local beside
  beside=$(leftovers)
  case $2-$4-$status-$old in
  unlink-*) limit=1 ;;                                   # what cannot be removed stays
  open-always-* | stat-always-* | list-always-*) limit=1 ;; # the same
  open-*-0-?* | stat-*-0-?* | list-*-0-?*) limit=1 ;;    # the old one, after the exchange
  *) limit=0 ;;
  esac
  [ "$(wc -w <<<"$beside")" -le $limit ] ||
    fault "$1: status $status leaves $(wc -w <<<"$beside"): ${beside:0:300} ($(cat err))"
}

for name in "${conversions[@]}"; do
  conversion "$name"
  count ''
  lacking=''
  counted=$(awk '$2 > 0 { printf "%s%s %s", s, $2, $1; s = ", " }' counts)
  for line in "${faults[@]}"; do
    read -r kind how number want lacks <<<"$line"
    [ "$lacks" = "$lacking" ] || count "$lacks"
    lacking=$lacks
    n=$(calls "$kind")
    runs=$((n < most ? n : most))
    for ((i = 0; i < runs; i++)); do
      turn=$((turn + 1))
      k=$((most == 1 ? 1 + turn * 7919 % n : runs == 1 ? 1 : 1 + i * (n - 1) / (runs - 1))) # the first and the last too
      label="$name: $kind $k of $n, $how $number${lacks:+, no $lacks}"
      broken "$kind" $k "$how" "$number" "$lacks"
      judge "$label" "$kind" "$want" "$how"
      [ "$status" = 0 ] && [ -z "$(leftovers)" ] || again "$label"
    done
  done
  echo "$name: $counted"
done

# The input changes while it is read: status 1, whatever has been read by then. In the header it may be malformed, 2.
for name in shards over_file; do
  conversion "$name"
  original=${arguments[0]} input=$work/in/changing
  [ -d "$original" ] && changing=$input/shard-00002-model-00001-of-00001.safetensors ||
    input+=.safetensors changing=$input
  arguments=("$input" "${arguments[@]:1}")
  for i in "${!arguments[@]}"; do # after the comparison begins, a change of what was moved rightly shows no more
    [ "${arguments[i]}" != --verify ] || unset "arguments[i]"
  done
  changed() { # K HOW
    rm -rf "$input" && cp -r "$original" "$input" && chmod -R u+w "$input"
    before
    status=0
    FAULT_UNDER=$changing FAULT_KIND=pread FAULT_AT=$1 FAULT_HOW=$2 FAULT_COUNT=$work/counts \
      timeout 300 env LD_PRELOAD="$preload" "$RESHARD" convert "${arguments[@]}" >out 2>err </dev/null || status=$?
    checks=$((checks + 1))
  }
  changed 0 touch
  complete || fault "$name: of a copy: status $status: $(cat err)"
  n=$(calls pread)
  [ "$n" -gt 2 ] || fault "$name: $n reads of the input were counted"
  runs=$((n < 2 * most ? n : 2 * most))
  for how in shrink grow touch; do
    for ((i = 0; i < runs; i++)); do
      k=$((runs == 1 ? 1 : 1 + i * (n - 1) / (runs - 1)))
      changed $k $how
      label="$name: input, $how before read $k of $n"
      [ "$status" = 1 ] || { [ "$status" = 2 ] && [ $k -le 2 ]; } || fault "$label: status $status: $(cat err)"
      [ "$(wc -l <err)" = 1 ] && grep -q '^reshard: error: ' err || fault "$label: not one line: $(head -c 600 err)"
      as_it_was || fault "$label: OUT is not as it was"
      [ -z "$(leftovers)" ] || fault "$label: leaves $(leftovers)"
    done
  done
done

# A limit on the size of files is an error, not a signal.
conversion file
before
status=0
(ulimit -f 64 && run convert "${arguments[@]}" && exit "$status") || status=$?
judge 'file size limit' pwrite fails always
finish
