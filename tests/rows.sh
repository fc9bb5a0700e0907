# Shared by tests/layout_matrix and tests/scale (sourced): a row of a table is a run of rlk. Expects `rlk`, and `out`, the
# folder of the runs.
# shellcheck shell=bash
: "${rlk:?}" "${out:?}"
rows=0 bad=0

# make_run COMMAND ID OPTIONS...: the run ID, made unless it is there and sealed. Sets `result`, "ok" or what went wrong, and
# `seconds`, - for a run that was there.
make_run() {
  local command=$1 id=$2 start=$EPOCHREALTIME
  shift 2
  result=ok seconds=-
  [[ ! -e $out/$id/COMPLETE ]] || return 0
  rm -rf "${out:?}/$id"
  "$rlk" "$command" --allow-dirty --output-root "$out" --run-id "$id" "$@" >"$out/$id.log" 2>&1 ||
    result="$command exited $?, see $out/$id.log"
  seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
}

# must_equal REFERENCE ID: `result` says where the two runs differ, by `rlk compare` or in any byte of what they recorded.
must_equal() {
  [[ $result == ok && $1 != "$2" ]] || return 0
  if ! "$rlk" compare "$out/$1" "$out/$2" >"$out/$2.compare" 2>&1; then
    result="differs from $1: $(head -n 1 "$out/$2.compare")"
    return 0
  fi
  local part bytes
  for part in sidecars trajectories weights; do # what each engine held is another number of fingerprints
    bytes=$(diff -rq -x 'rollout-*.json' "$out/$1/$part" "$out/$2/$part" 2>&1) || result="differs: ${bytes%%$'\n'*}"
  done
}

# count: takes the row into the sum that `verdict` prints.
count() {
  rows=$((rows + 1))
  [[ $result == ok ]] || bad=$((bad + 1))
}

verdict() { # exit status of the table
  echo "$((rows - bad)) of $rows rows $1"
  ((rows > 0 && bad == 0))
}
