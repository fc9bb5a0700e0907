# Shared by ./rlk, tests/run and .ci/run (sourced): packages, preset, quiet builds. Expects `root`, the project's folder.
# shellcheck shell=bash
: "${root:?}"

die() { # die EXIT_CODE MESSAGE...
  local code=$1
  shift
  printf 'rlk: %s\n' "$*" >&2
  exit "$code"
}

# need_packages PURPOSE...: installs what is missing of cmake/packages.txt, or says which command does, and exits with 2.
need_packages() {
  local purpose missing=() name
  command -v dpkg-query >/dev/null || return 0 # no Debian: the configure step says what it lacks
  for purpose in "$@"; do
    while read -r name; do
      [[ $(dpkg-query -W -f='${Status}' "$name" 2>/dev/null) == *' installed' ]] || missing+=("$name")
    done < <(sed -n "s/^$purpose //p" "$root/cmake/packages.txt")
  done
  ((${#missing[@]})) || return 0

  local install="apt-get install -y --no-install-recommends ${missing[*]}"
  local as=()
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      die 2 "packages are missing; type: sudo apt-get update && sudo $install"
    fi
    as=(sudo -n)
  fi
  echo "rlk: installing ${missing[*]}" >&2
  mkdir -p "$root/build"
  local log=$root/build/packages.log
  {
    "${as[@]}" apt-get update && "${as[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1 </dev/null || {
    tail -n 5 "$log" >&2
    die 2 "installing packages failed (log: $log); type: ${as[*]:+sudo }apt-get update && ${as[*]:+sudo }$install"
  }
}

find_nvcc() { command -v nvcc || { [[ -x /usr/local/cuda/bin/nvcc ]] && echo /usr/local/cuda/bin/nvcc; }; }

# The cuda preset where there is a compiler and a GPU, else cpu. RLK_PRESET decides otherwise.
choose_preset() {
  if [[ -n ${RLK_PRESET:-} ]]; then
    echo "$RLK_PRESET"
  elif find_nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    echo cuda
  else
    echo cpu
  fi
}

# Copies ninja's output, and once something is compiled, shows one line that says how far it is: rewritten on a terminal,
# printed once elsewhere.
progress_line() { # progress_line TITLE < ninja's output
  local title=$1 line shown=
  while IFS= read -r line; do
    printf '%s\n' "$line"
    [[ $line =~ ^\[([0-9]+/[0-9]+)\]\ (Building|Linking) ]] || continue
    if [[ -t 2 ]]; then
      printf '\r%s %s ' "$title" "${BASH_REMATCH[1]}" >&2
    elif [[ -z $shown ]]; then
      echo "$title" >&2
    fi
    shown=yes
  done
  [[ -z $shown || ! -t 2 ]] || printf '\r\033[K' >&2
}

# build PRESET TARGET...: configures where needed and builds; quiet when there is nothing to do. Log: build/PRESET.log.
build() {
  local preset=$1
  shift
  local dir=$root/build/$preset log=$root/build/$preset.log
  mkdir -p "$root/build"
  local lock
  exec {lock}>"$root/build/.lock" # two calls at once build once
  flock "$lock"
  if [[ ! -f $dir/build.ninja ]]; then
    need_packages build
    local compiler=()
    [[ $preset != cuda ]] || compiler=("-DCMAKE_CUDA_COMPILER=$(find_nvcc)")
    if ! (cd "$root" && cmake --preset "$preset" "${compiler[@]}") >"$log" 2>&1; then
      rm -f "$dir/build.ninja"
      tail -n 20 "$log" >&2
      die 2 "configuring failed (log: $log)"
    fi
  fi
  local status=0
  ninja -C "$dir" "$@" 2>&1 | progress_line "rlk: building $preset (log: ${log#"$PWD"/})" >"$log" || status=$?
  exec {lock}>&-
  if ((status)); then
    grep -E 'error|FAILED' "$log" | head -n 20 >&2 || tail -n 20 "$log" >&2
    die 1 "the build failed (log: $log)"
  fi
}
