# ./run demo: a small model and a checkpoint, planned, moved, drawn and compared. Sourced.

title() { printf '\n== %s\n' "$1"; }
show() { # COMMAND...: prints and runs it
  local word line=""
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'$word'"
    line+=" $word"
  done
  printf '$%s\n' "$line"
  "$@" </dev/null
}

demo_model() { # plans, moves and draws; to $out/plan.txt, model.txt, rows.txt
  local model=(--model "$models/demo-llama.json" --src "@$models/rules/fsdp.rules"
    --dst "@$models/rules/tp.rules" --mesh fsdp=4,tp=2)
  local rows=(--shape 8192x8192 --dtype f32 --src 'chunk(0)' --dst 'chunk(1)' --ranks 4)
  title "What has to move when a small Llama goes from FSDP over 4 ranks to tensor parallelism over 2"
  show "$program" plan "${model[@]}" | tee "$out/plan.txt"
  title "Moving it: 4 ranks that are threads, every byte checked"
  show "$program" bench "${model[@]}" -c | tee "$out/model.txt"
  title "Rows to columns, 256 MiB, beside a straight copy of as many bytes by as many threads"
  show "$program" bench "${rows[@]}" | tee "$out/rows.txt"
  title "A picture of the small model's plan"
  show "$program" plan "${model[@]}" --svg "$out/plan.svg" | sed -n '1p; $p'
}

demo_files() { # [FILE]: whole -> shards of 4 -> shards of 2 -> whole; to $out/cut.txt, reshard.txt, join.txt
  local files=$out/files end=safetensors four="@$models/rules/fsdp.rules" two="@$models/rules/tp.rules"
  rm -rf "$files"
  mkdir "$files"
  # shellcheck disable=SC2064 # the path as it is now
  trap "rm -rf '$files'" EXIT # they are large
  [[ ${1:-} != *.npy ]] || end=npy four='chunk(0)' two='chunk(-1)'
  local whole=$files/whole.$end again=$files/again.$end
  if [ $# = 0 ]; then
    title "A checkpoint of a Llama with 8 layers, random numbers from a seed"
    show "${program%/*}/reshard_demo_checkpoint" "$models/demo-llama-8.json" "$whole" 1
  else
    title "Your tensors as one file"
    show "$program" convert "$1" "$whole" --verify
    # Scalars cannot be cut along a dim.
    [ $end = npy ] || "$program" plan --model "$whole" --src "$four" --dst "$two" --mesh fsdp=4,tp=2 >/dev/null 2>&1 \
      </dev/null ||
      four='flat()' two='flat()'
  fi
  title "Cut for 4 ranks, as a training job saves it"
  show "$program" convert "$whole" "$files/shards-4" --dst "$four" --ranks 4 | tee "$out/cut.txt"
  title "From these 4 to 2 ranks in another layout, as an inference engine wants it"
  show "$program" convert "$files/shards-4" "$files/shards-2" --dst "$two" --ranks 2 | tee "$out/reshard.txt"
  rm -rf "$files/shards-4"
  title "Joined again"
  show "$program" convert "$files/shards-2" "$again" | tee "$out/join.txt"
  show cmp "$whole" "$again" || die "the joined file is not the first one"
  echo "equal in every byte"
}

# Ticks of the machine so far, those of them that were not idle, and those of this shell and of its children that ended.
used_ticks() {
  awk 'FNR == 1 && NR == 1 { print $2+$3+$4+$5+$6+$7+$8+$9, $2+$3+$4+$7+$8+$9 } FILENAME != "/proc/stat" {
    sub(/.*\) /, ""); print $12 + $13 + $14 + $15 }' /proc/stat "/proc/$$/stat" | tr '\n' ' '
}
say_busy() { # BEFORE AFTER, of used_ticks: a line where others took more than 5 % of the machine
  awk -v before="$1" -v after="$2" 'BEGIN {
    split(before, a); split(after, b)
    taken = b[1] > a[1] ? 100 * ((b[2] - a[2]) - (b[3] - a[3])) / (b[1] - a[1]) : 0
    if (taken > 5) printf "  the machine was busy: other processes took %.0f %% of it; a quiet one is faster\n", taken
  }'
}

run_demo() { # [FILE]
  local given=()
  if [ $# != 0 ]; then
    [ -e "$1" ] || die "demo: no file or directory '$1'"
    given=("$(realpath -s -- "$1")") # a link keeps its name, which says what it is
  fi
  need "${build_packages[@]}"
  build_or_die release reshard_product
  cd "$root"
  local program=$build/reshard models=bench/models out=$build/demo
  [[ $program != "$root/"* ]] || program=${program#"$root/"}
  [[ $out != "$root/"* ]] || out=${out#"$root/"}
  mkdir -p "$out"
  local before
  before=$(used_ticks)
  [ $# != 0 ] || demo_model
  demo_files ${given[@]+"${given[@]}"}
  title "Done in $SECONDS s"
  echo "  did                                       with this result"
  # Rows of bench: size count type time algbw busbw memcpy ratio wrong.
  # shellcheck disable=SC2016 # awk's dollars
  local row='$1 ~ /^[0-9]+$/ && NF >= 9' bytes=' { print $4 " us, " $5 " GB/s, " $9 " bytes wrong" }'
  # shellcheck disable=SC2016
  local speed=' { print $4 " us, " $8 " x the speed of memcpy" }'
  [ $# != 0 ] || cat <<TEXT
  planned the model's reshard               $(sed -n 's/^on the wire *//p' "$out/plan.txt")
  moved it and checked every byte           $(awk "$row$bytes" "$out/model.txt")
  moved 256 MiB from rows to columns        $(awk "$row$speed" "$out/rows.txt")
TEXT
  cat <<TEXT
  cut a checkpoint for 4 ranks              $(sed -n 's/^moving *//p' "$out/cut.txt")
  resharded its files for 2 ranks           $(sed -n 's/^moving *//p' "$out/reshard.txt")
  joined them, every byte as before         $(sed -n 's/^moving *//p' "$out/join.txt")
TEXT
  say_busy "$before" "$(used_ticks)"
  cat <<TEXT

  what                                      where
  program (reshard --help)                  $program
  library, shared and static                ${program%reshard}libreshard.so, libreshard.a
  headers                                   include/reshard/ (reshard.h, torch.h, file.h)
TEXT
  [ $# != 0 ] || echo "  picture of the plan                       $out/plan.svg"
  cat <<TEXT
  small models and their two rule files     $models/demo-*.json, $models/rules/fsdp.rules, tp.rules
  large models by name, and their rules     reshard plan --model llama-3.1-70b ..., $models/rules/
  a checkpoint of your own                  ./run demo FILE; reshard convert --help
  all tests                                 ./run test
  all figures                               ./run bench
TEXT
}
