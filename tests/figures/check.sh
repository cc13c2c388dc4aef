#!/usr/bin/env bash
# Figures beside committed results (check.py), what is wrong being found, and two runs of ./run bench beside each other.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
command -v python3 >/dev/null || { echo "check: skipped, there is no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fault() { echo "check: $*" >&2; exit 1; }
python3 "$SOURCE/tests/figures/check.py" "$SOURCE"
save=$SOURCE/profiles/report/save.py
python3 "$save" --check "$SOURCE"

mkdir -p "$work/tree/profiles/results" "$work/tree/tests/figures"
cp "$SOURCE/README.md" "$work/tree/"
cp "$SOURCE"/profiles/{figures.md,compare.py} "$work/tree/profiles/"
cp -r "$SOURCE"/profiles/results/. "$work/tree/profiles/results"
cp "$SOURCE/tests/figures/rows" "$work/tree/tests/figures/"
check() { python3 "$SOURCE/tests/figures/check.py" "$work/tree" >"$work/said"; }
check || fault "a copy is not right: $(cat "$work/said")"
spoil() { # EXPECTED FILE SED-EXPRESSION
  sed -i.saved "$3" "$work/tree/$2"
  ! check || fault "not seen: $1"
  grep -q "$1" "$work/said" || fault "not '$1': $(cat "$work/said")"
  mv "$work/tree/$2.saved" "$work/tree/$2"
}
spoil '39 is 41 in' profiles/figures.md 's/ 41 to 58 ns/ 39 to 58 ns/'
spoil 'has 2 figures, and its results 3' profiles/figures.md \
  '/^| rows to columns, direct, inner runs of 8/s/ \/ [0-9.*]* |$/ |/'
spoil 'entries of tests/figures/rows' profiles/figures.md 's/^| validate /| check /'
spoil 'no row of figures.md' profiles/figures.md '/^| validate /d'
spoil 'is not in results/mutation.md' README.md 's/99\.3 %/99.9 %/'
spoil "'our 4.5 GB/s is 2.4 times': 4.5 is 4.6 in" \
  profiles/results/2026-11-22-epyc-2-cores.md 's/| 4.5; 2.4 |/| 4.6; 2.4 |/'
spoil "no entry of tests/figures/rows has .* 7.5 us" profiles/figures.md 's/fails where it is not/within 7.5 us &/'
spoil 'figures.md does not say "takes ' tests/figures/rows 's/^"take /"takes /'
# Newer results count.
printf '| what | goal | measured |\n| --- | --- | --- |\n| load 2 GiB, tmpfs | >= 1.2 | 2.50 |\n' \
  >"$work/tree/profiles/results/2999-01-01-other.md"
! check || fault "newer results are not seen"
grep -q '1.90 is 2.50 in 2999-01-01-other.md' "$work/said" || fault "$(cat "$work/said")"

# Plots that are kept, and what is said of them, are drawn from what was measured.
mkdir "$work/tree/docs"
cp "$SOURCE/docs/profile.md" "$work/tree/docs/"
cp -r "$SOURCE/profiles/plots" "$work/tree/profiles/"
cp "$SOURCE/profiles/results/report.json" "$work/tree/profiles/results/"
check() { python3 "$save" --check "$work/tree" >"$work/said" 2>&1; }
check || fault "a copy is not kept: $(cat "$work/said")"
spoil 'profiles/plots/throughput.svg is not what' profiles/plots/throughput.svg 's/GB\/s/MB\/s/'
spoil 'README.md is not what' README.md 's/of the speed of a straight copy; in/of twice the speed; in/'
spoil 'README.md is not what' profiles/results/report.json '/^"sizes"/ s/"ratio":0/"ratio":1/g'
spoil 'docs/profile.md shows ../profiles/plots/limit.svg, of which nothing' docs/profile.md 's/limits.svg/limit.svg/'
python3 "$save" "$work/tree/profiles/results/report.json" "$work/tree"
check || fault "what was kept again is another: $(cat "$work/said")"
sed 's/"quick":false/"quick":true/' "$work/tree/profiles/results/report.json" >"$work/quick"
! python3 "$save" "$work/quick" "$work/tree" 2>"$work/said" || fault 'a page to be tried is kept'
# Runs of a changed tree, of a busy machine, and with peers of another run are not kept; and one of a clean tree is.
run() { # COMMIT OTHERS PEERS-RUN: a run like the one that is kept
  python3 - "$work" "$@" <<'PYTHON'
import json, sys
work, commit, others, peers = sys.argv[1:]
data = json.load(open(f"{work}/tree/profiles/results/report.json"))
data["environment"].update(commit=commit, others=float(others))
data["peers_run"] = peers
json.dump(data, open(f"{work}/run.json", "w"))
PYTHON
}
not_kept() { # EXPECTED
  ! python3 "$save" "$work/run.json" "$work/tree" 2>"$work/said" && grep -q "$1" "$work/said" ||
    fault "kept, or not '$1': $(cat "$work/said")"
  check || fault "a run that is refused changes the tree: $(cat "$work/said")"
}
run 'abc1234, changed' 0.01 'today, commit abc1234'; not_kept 'the tree was changed (commit abc1234, changed)'
run abc1234 0.06 'today, commit abc1234'; not_kept 'others took 6 % of the machine, more than 5 %'
run abc1234 0.05 'today, commit abc1235'; not_kept 'the peers are of another run (today, commit abc1235)'
run abc1234 0.05 'today, commit abc1234 and changes'; not_kept 'the peers are of another run'
run abc1234 0.05 'today, commit abc1234, others took 20 % of the machine'; not_kept 'measured on a busy machine'
run abc1234 0.05 'today, commit abc1234, others took 5 % of the machine'
python3 "$save" "$work/run.json" "$work/tree" || fault 'a run of a clean tree on a quiet machine is not kept'
grep -q 'commit abc1234' "$work/tree/profiles/plots/throughput.svg" || fault 'the plots are not of the run'
check || fault "what was kept is another: $(cat "$work/said")"
# Renderers that know no variables see literal colours, before those.
for plot in "$work"/tree/profiles/plots/*.svg; do
  sed '/^@supports/,/^}$/d' "$plot" >"$work/plain"
  grep -q 'svg text{fill:#' "$work/plain" || fault "$plot: no literal colours"
  ! grep -q 'var(' "$work/plain" || fault "$plot: a variable without a literal before it"
done
grep -q '>the peer<' "$work/tree/profiles/plots/peers.svg" || fault 'peers.svg has no legend'

# Samples, until there are enough of them.
. "$SOURCE/bench/compare/samples.bash"
settled() { # STATUS FIGURE KIND UNIT SAMPLE...
  local want=$1 figure=$2 kind=$3 unit=$4 status=0 said
  shift 4
  printf '%s\n' "$@" >"$work/samples"
  settle "$kind" "$work/samples" "${pace:-0}" >"$work/now" || status=$?
  said=$(show_figure "$unit" <"$work/now")
  [ "$status $said" = "$want $figure" ] || fault "settle $kind $*: $status $said, not $want $figure"
}
settled 0 '101 ns (2.0 %)' time ns 150 100 102 190 101
settled 1 '101 ns (3.0 %)' time ns 150 100 103 190 101
settled 1 '101 ns (2.0 %, samples 3)' time ns 100 102 101
settled 0 '33.7 ns (2.0 %)' time ns '200 2' '50 4' '50.5 4' '34 6' # a slower core counts as many steps
pace=5 settled 0 '40.4 ns (2.0 %)' time ns '200 2' '50 4' '50.5 4' '34 6'
settled 0 '1.01 (2.0 %)' ratio '' 0.2 1.00 1.02 9
settled 1 '1.02 (3.9 %)' ratio '' 0.5 1.00 1.04 9
settled 0 '0.0123 ms (0.8 %)' time ms 1.23e-2 0.0123 0.0124 0.02
settled 1 '25.0 (0.0 %, samples 1)' time '' 25
settled 0 '1.01 (1.0 %)' ratio '' '0.7 10' '1.02 31' '1.01 30' '2 20' '1.01 32' '3 9'
settled 1 '1.01 (1.0 %, samples 5)' ratio '' '0.7 10' '1.02 31' '1.01 30' '2 20' '1.01 32'
pace=33 settled 0 '1.01 (1.0 %)' ratio '' '0.7 10' '1.02 31' '1.01 30' '2 20' '1.01 32' '3 9'
pace=34 settled 1 '1.01 (1.0 %, pace 88 %)' ratio '' '0.7 10' '1.02 31' '1.01 30' '2 20' '1.01 32' '3 9'
settled 1 '0.850 (35.3 %, samples 2)' ratio '' '0.7 10' '1.00 31'
settled 1 '-1.50 us (133.3 %)' ratio us -3 -2 -2.5 -0.5 -1 2
settled 0 '5.00 us (8.0 %)' difference us '50 10.1' '15 9.9' '15.1 10' '14.9 30'
settled 1 '5.00 us (22.0 %)' difference us '50 10.1' '15 9.2' '15.1 10' '14.9 30'
settled 0 '5.00 us (8.0 %)' difference us '100 20.2 1' '15 9.9 2' '15.1 10 2' '29.8 60 1'
settled 1 '-1.00 us (20.0 %, samples 3)' difference us '9 10.1' '9 9.9' '9 10'
: >"$work/samples"
for kind in ratio difference; do
  ! settle "$kind" "$work/samples" >"$work/now" || fault 'no samples are enough'
done
[ -z "$(show_figure ms <"$work/now")" ] || fault 'a figure of no samples'

compare() { python3 "$SOURCE/profiles/compare.py" "$work/a" "$work/b" >"$work/said" 2>&1; }
{ echo '| copies | goal | measured |'
  for i in 1 2 3 4 5 6 7 8 9 10; do echo "| row $i | >= 0.95 | 1.0$i |"; done; } >"$work/a"
sed 's/| row 3 .*/| row 3 | >= 0.95 | 2.06 |/; s/| row 4 .*/| row 4 | >= 0.95 | 1.06 |/' "$work/a" >"$work/b"
compare || fault "nine of ten rows agree: $(cat "$work/said")"
grep -q '^ *50\.0 %  row 3: 1\.03, 2\.06' "$work/said" || fault "$(cat "$work/said")"
grep -q '9 of 10 figures (90.0 %) agree within 5 %; spread: median 0.0 %, largest 50.0 %' "$work/said" ||
  fault "$(cat "$work/said")"
grep -q "^$work/a: 10 of 10 rows are settled within 5 %" "$work/said" || fault "$(cat "$work/said")"
sed -i 's/| row 5 .*/| row 5 | >= 0.95 | 0.2 (5.1 %) |/
  s/| row 6 .*/| row 6 | >= 0.95 | 1.06 (1.0 %, pace 62 %) |/' "$work/b"
! compare || fault "eight of ten rows are enough"
grep -q "^$work/b: 8 of 10 rows are settled within 5 %" "$work/said" || fault "$(cat "$work/said")"
grep -q '^ *81\.0 %  row 5: 1\.05, 0\.2; not settled$' "$work/said" || fault "$(cat "$work/said")"
grep -q '^7 of 8 figures (87.5 %) that both have settled agree within 5 %$' "$work/said" || fault "$(cat "$work/said")"
yardsticks() { # FILE PACE COPY TIME
  printf '| copies | goal | measured |\n| straight copy, GB/s | | %s (1.0 at the slowest) |\n' "$3" >"$1"
  printf '| a core, 1/ns | | %s (0.4 at the slowest) |\n| a plan | <= 9 us | %s us |\n' "$2" "$4" >>"$1"
}
yardsticks "$work/a" 1.0 20 4.00
yardsticks "$work/b" 0.8 10 5.00
compare || fault "a time is not compared in steps of the core: $(cat "$work/said")"
grep -q '1 of 1 figures' "$work/said" || fault "what the machine has done counts: $(cat "$work/said")"
yardsticks "$work/b" 0.8 20 4.00
! compare || fault "a time of a slower core agrees"
echo "| other | goal | measured |" >"$work/b"
! compare || fault "files without a row in common agree"

# Lines of ./run build for what it is without.
log=$work
. "$SOURCE/scripts/build.bash"
[ -z "$(say_lacking '{"cuda":true,"nccl":true,"mpi":true}')" ] || fault 'a build that has all lacks something'
said=$(say_lacking '{"cuda":false,"nccl":false,"mpi":false}')
[ "$(grep -cE 'built without (MPI|CUDA|NCCL) .*: .*, then ./run build$' <<<"$said")" = 3 ] || fault "lacking: $said"
[[ $(say_lacking '{"cuda":true,"nccl":true,"mpi":false}') == *libopenmpi-dev* ]] || fault 'MPI: how?'

# Others' share of the machine, as ./run demo, ./run peers and ./run report say it.
. "$SOURCE/scripts/demo.bash"
[[ $(used_ticks) =~ ^[0-9]+\ [0-9]+\ [0-9]+\ ?$ ]] || fault "used_ticks: $(used_ticks)"
[[ $(say_busy '100 50 10' '200 120 60') == *' busy: other processes took 20 % of it;'* ]] || fault 'not seen: 20 %'
[ -z "$(say_busy '100 50 10' '200 105 60')" ] || fault "5 % is busy: $(say_busy '100 50 10' '200 105 60')"
[ -z "$(say_busy '100 50 10' '100 50 10')" ] || fault 'no time is busy'
PYTHONPATH=$SOURCE/profiles/report python3 - <<'PYTHON' || fault 'others.py'
import os, subprocess, others
assert others.share((100, 50, 10), (200, 120, 60)) == 0.2 and "took 20 % of it" in others.words(0.2)
assert others.share((100, 50, 10), (200, 105, 60)) == 0.05 and not others.words(0.05)
assert others.share((100, 50, 10), (200, 90, 90)) == others.share((1, 1, 1), (1, 1, 1)) == 0
before = others.used()
child = subprocess.Popen(["sh", "-c", "while :; do :; done"])
try:
    ticks = os.sysconf("SC_CLK_TCK") / 2
    while int(open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[11]) < ticks:
        pass
    total, busy, own = (b - a for a, b in zip(before, others.used()))
finally:
    child.kill()
    child.wait()
assert 0 < own and 0.3 < busy < total + 0.005, (total, busy, own)  # each is rounded to a tick of 0.01 s
after = others.used()[2] - before[2]
assert after >= own + 0.4, (after, own)  # a child that ended is no other
PYTHON
