# Ground of ./run: output, counted steps, packages and builds. Sourced.

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
die() { printf 'run: %s\n' "$*" >&2; exit 1; }

passed=0 failed=0 skipped=0
failures=()
count() { # STATUS NAME: one more step, by its exit status
  case $1 in
  0) passed=$((passed + 1)) ;;
  77) skipped=$((skipped + 1)) ;;
  *) failed=$((failed + 1)) failures+=("$2") ;;
  esac
}

report() { # ends a test or fuzz run
  local name
  for name in "${failures[@]}"; do echo "FAILED $name"; done
  say "logs are in $log"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ]
}

# --- Packages --------------------------------------------------------------------------------------------------------
build_packages=(gcc g++ cmake ninja-build ccache pkg-config libjansson-dev libxxhash-dev libbenchmark-dev)
test_packages=("${build_packages[@]}" libcmocka-dev binutils openmpi-bin libopenmpi-dev clang-format-14 gfortran)
fuzz_packages=("${build_packages[@]}" libcmocka-dev clang-14 libclang-rt-14-dev) # the helpers of tests have it

need() { # PACKAGE...: installs those that are missing
  if ! command -v dpkg-query >/dev/null; then # not Debian: say what is missing and go on with what is there
    local tool
    for tool in cmake ninja cc; do
      command -v "$tool" >/dev/null || die "$tool is missing; on Debian it comes with: apt-get install $*"
    done
    return
  fi
  local have package missing=()
  have=" $(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | sed -n 's/ installed$//p' |
    tr '\n' ' ' || true)"
  for package in "$@"; do
    [[ $have == *" $package "* ]] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local as=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; } && as=(sudo)
    [ ${#as[@]} -gt 0 ] || die "packages are missing; type: sudo apt-get install -y ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  "${as[@]}" apt-get update -qq >"$log/apt.log" 2>&1 </dev/null || true
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >>"$log/apt.log" 2>&1 </dev/null || {
    tail -5 "$log/apt.log" >&2
    die "could not install them; type: apt-get update && apt-get install -y ${missing[*]}"
  }
}

# --- Building --------------------------------------------------------------------------------------------------------
directory() { [ "$1" = release ] && echo "$build" || echo "$build/$1"; }

make_build() { # PRESET TARGET [OPTION]...: configures and builds, output to its log
  local dir
  dir=$(directory "$1")
  # A build directory that came along with a moved or copied checkout knows other paths.
  grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt" ||
    rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
  local python=() # that of the environment, where there is one
  [ ! -x "$python_environment/bin/python" ] || python=(-DPython_EXECUTABLE="$python_environment/bin/python")
  (cd "$root" && cmake --preset "$1" -B "$dir" -DRESHARD_CUDA_H100=OFF "${python[@]}" "${@:3}" &&
    cmake --build "$dir" -j "$cores" --target "$2" -- -k 0) </dev/null \
    >"$log/build-$1.log" 2>&1
}

build_failed() { # PRESET
  say "$1: the build failed"
  grep -E -A6 'error:|FAILED|CMake Error|undefined' "$log/build-$1.log" | cut -c1-300 | head -60 ||
    tail -20 "$log/build-$1.log"
  echo "        all of it: $log/build-$1.log"
}

build_or_die() { # PRESET TARGET
  local before=$SECONDS
  say "building ($1)"
  make_build "$@" || { build_failed "$1"; exit 1; }
  say "built in $((SECONDS - before)) s"
}

say_lacking() { # JSON of `reshard info`: a line for each thing that the build is without, and how to get it
  local part how
  while IFS='|' read -r part how; do
    [[ $1 != *"\"${part%% *}\":false"* ]] || say "built without ${part#* }: $how, then ./run build"
  done <<'TEXT'
mpi MPI (ranks that are MPI processes)|apt-get install openmpi-bin libopenmpi-dev, or MPI_HOME of another
cuda CUDA (memory of GPUs)|the CUDA toolkit from 12.0 on, with nvcc (developer.nvidia.com), or CUDAToolkit_ROOT
nccl NCCL (ranks that are NCCL's)|apt-get install libnccl-dev of NVIDIA's repository, or NCCL_HOME
TEXT
}
