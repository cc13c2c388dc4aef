# Sourced by gpu.sh: the programs, built here or before, and tools and libraries that they find.

find_tool() { # NAME: prints the path of a tool of NVIDIA's, if there is one
  local at
  for at in "$(command -v "$1")" "${CUDA_HOME:-/usr/local/cuda}/bin/$1" /usr/local/cuda/bin/"$1" \
    /usr/local/nvidia/bin/"$1" /opt/nvidia/nsight-compute/*/"$1" /usr/local/cuda/compute-sanitizer/"$1"; do
    [ -x "$at" ] || continue
    # Follows a link to the toolkit, not one to a compiler cache.
    [[ $(realpath "$at") != */"$1" ]] || at=$(realpath "$at")
    echo "$at"
    return
  done
}

# The directory of the libnccl that PyTorch brings, by the interpreter's path: nothing of PyTorch is run.
find_nccl() {
  local python=${RESHARD_TEST_PYTHON:-python3}
  command -v "$python" >/dev/null || return 0
  timeout -k 1 10 "$python" -c '
import os, sys
for place in sys.path:
    at = os.path.join(place, "nvidia", "nccl", "lib")
    if os.path.exists(os.path.join(at, "libnccl.so.2")):
        print(at)
        break' 2>/dev/null </dev/null
}

tell_commit() { # prints the commit of this tree
  local commit=${RESHARD_COMMIT:-}
  if [ -z "$commit" ]; then
    commit=$(git rev-parse --short=12 HEAD 2>/dev/null) || commit=unknown
    git diff --quiet HEAD -- 2>/dev/null || commit+=' with changes'
  fi
  echo "$commit"
}

build_programs() { # in $build, by $nvcc, with options of CMake more
  local arch=${arch:-} options=(-DCMAKE_BUILD_TYPE=Release -DRESHARD_CUDA=ON -DRESHARD_TESTS=OFF -DRESHARD_MPI=OFF
    -DRESHARD_PYTHON=OFF)
  [ -n "$arch" ] || arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 |
    tr -dc '0-9')
  [ -n "$arch" ] || arch=$("${nvcc%/*}/__nvcc_device_query" 2>/dev/null | head -1 | grep -oE '^[0-9]+')
  ! command -v ninja >/dev/null || options+=(-G Ninja)
  [[ $nvcc != */bin/nvcc ]] || options+=(-DCUDAToolkit_ROOT="${nvcc%/bin/nvcc}")
  [ -z "$arch" ] || options+=(-DCMAKE_CUDA_ARCHITECTURES="$arch-real")
  CUDACXX=$nvcc cmake -S . -B "$build" "${options[@]}" "$@" || return
  local targets=(reshard_program reshard_gpu)
  ! grep -q '^benchmark_DIR:PATH=/' "$build/CMakeCache.txt" || targets+=(reshard_micro)
  cmake --build "$build" -j "$cores" --target "${targets[@]}"
}

# Puts programs into a directory that a bare machine can use, or leaves it as it was: stripped, with all libraries that
# they need beside libc's, and a text of what they are.
make_ready() { # DIRECTORY COMMIT HOW PROGRAM...
  local to=$1 commit=$2 how=$3 program library path needed
  shift 3
  rm -rf "$to.new"
  mkdir -p "$to.new" || return
  for program; do
    cp "$program" "$to.new/" || return
    ! command -v strip >/dev/null || strip "$to.new/${program##*/}" || return
    while read -r library _ path _; do
      [[ $path != 'not' ]] || { echo "$program needs $library, which is not here" >&2; return 1; }
      cp -L "$path" "$to.new/$library" || return
    done < <(ldd "$program" | grep ' => ' | grep -vE '^\s*(lib(c|m|dl|rt|pthread)|ld-linux[^ ]*)\.so')
  done
  needed=$(cat "$to.new"/* | LC_ALL=C grep -aoE 'GLIBC_2\.[0-9]+' | sort -uV | tail -1)
  {
    printf 'commit: %s\ncommand: %s\nmade: %s on %s\n' "$commit" "$how" "$(date -u +%Y-%m-%dT%H:%MZ)" "$(uname -sm)"
    [ -z "${nvcc:-}" ] || printf 'nvcc: %s\n' "$("$nvcc" --version | sed -n 's/.*release.*, V//p')"
    printf 'needs: glibc of %s or newer\nprograms:%s\n' "${needed#GLIBC_}" "$(printf ' %s' "${@##*/}")"
  } >"$to.new/ready.txt" || return
  rm -rf "$to.old"
  [ ! -e "$to" ] || mv "$to" "$to.old" || return
  mv "$to.new" "$to" && rm -rf "$to.old"
}

most_ready=$((24 << 20)) # bytes of what is carried to a machine
prebuild() {
  local nvcc build=$prebuilt arch=90 bytes programs=() archive jansson=()
  nvcc=$(find_tool nvcc)
  [ -n "$nvcc" ] || lacking "nvcc is missing: it is in the CUDA toolkit (CUDA_HOME, or in PATH)"
  # Archives where there are. Else libraries are found beside the programs, by a path that is for the program alone: the
  # other machine's NCCL has that machine's libstdc++. In C++, libraries need libgcc_s: the program names it for them.
  archive=$(cc -print-file-name=libjansson.a)
  [[ $archive != /* ]] || jansson=(-DJANSSON_LIBRARY="$archive")
  build_programs -DCMAKE_CUDA_FLAGS_RELEASE=-O3 -DCMAKE_BUILD_RPATH='$ORIGIN' -DNCCL_LIBRARY=OFF -DRESHARD_INSTALL=OFF \
    -DCMAKE_EXE_LINKER_FLAGS='-Wl,--enable-new-dtags -static-libgcc' \
    -DCMAKE_CXX_STANDARD_LIBRARIES='-Wl,--no-as-needed -l:libgcc_s.so.1' "${jansson[@]}" || return
  programs=("$build/reshard" "$build/reshard_gpu")
  if [ -x "$build/reshard_micro" ]; then
    programs+=("$build/reshard_micro")
  else
    say 'no Google Benchmark here (Debian: libbenchmark-dev): without reshard_micro no copy is measured alone'
  fi
  make_ready "$ready" "$(tell_commit)" './run gpu --prebuild' "${programs[@]}" || return
  bytes=$(cat "$ready"/* | wc -c)
  [ "$bytes" -le "$most_ready" ] || { printf 'run: gpu: %s has %d bytes, %d are wanted at most\n' "$ready" "$bytes" \
    "$most_ready" >&2; return 1; }
  say "$ready has $(awk -v n="$bytes" 'BEGIN { printf "%.1f", n / 2 ^ 20 }') MiB: $(cd "$ready" && echo *)"
}
