#!/usr/bin/env bash
# One model under HSDP with TP: examples/hsdp_tp.c, in $EXAMPLE, and PyTorch, where an interpreter has it.
# Each loads what the other saved, ours on another mesh, all bytes compared; and so after `reshard convert`.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/cli/files.bash" || exit 1
. "$SOURCE/tests/files/python.bash" || exit 1
python=${RESHARD_TEST_PYTHON:-python3}
"$python" -c 'from importlib.util import find_spec as f; exit(not (f("torch") and f("safetensors")))' 2>/dev/null ||
  skip "$python has no PyTorch with safetensors (RESHARD_TEST_PYTHON may name another)"

# as_saved DIRECTORY: the example loads it, and finds the model in it.
as_saved() {
  checks=$((checks + 1))
  "$EXAMPLE" load "$1" >load.out 2>&1 || fault "hsdp_tp load $1: $(tail -n 5 load.out)"
  [ "$(grep -c ' 0 things differ' load.out)" = 12 ] || fault "hsdp_tp load $1: not 6 ranks, twice: $(cat load.out)"
}

"$EXAMPLE" ours >save.out || fault "hsdp_tp: $(tail -n 5 save.out)"
"$python" -W ignore "$SOURCE/tests/files/hsdp.py" ours </dev/null 2>python.err ||
  fault "PyTorch: $(tail -n 20 python.err)"
[ "$failures" = 0 ] || finish

# The mesh of six ranks. Columns are cut by TP; where both cut rows, TP goes first.
cat >six.rules <<'END'
*.wo.weight    mesh(replicate=1,shard=3,tp=2;R,S0,S1)
*.down.weight  mesh(replicate=1,shard=3,tp=2;R,S0,S1)
*.norm.weight  mesh(replicate=1,shard=3,tp=2;R,S0,R)
*.positions    mesh(replicate=1,shard=3,tp=2;R,S0,R)
*              mesh(replicate=1,shard=3,tp=2;R,S0,S0;order=replicate,tp,shard)
END
for saved in distcp shards ours; do
  as_saved "$saved"
  expect 0 convert "$saved" "$saved.safetensors" --verify --no-digests
  same "$saved.safetensors" whole.safetensors
  expect 0 convert "$saved" "$saved.six" --dst @six.rules --ranks 6 --verify
  as_saved "$saved.six"
  expect 0 convert "$saved.six" "$saved.six.safetensors" --verify --no-digests
  same "$saved.six.safetensors" whole.safetensors
done

# One other byte is found.
file=$(ls shards/*.safetensors | head -n 1)
printf '\x55' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 1)) conv=notrunc status=none
if "$EXAMPLE" load shards >load.out 2>&1; then fault "hsdp_tp load takes another byte: $(cat load.out)"; fi
grep -q '[1-9][0-9]* things are wrong' load.out || fault "hsdp_tp load of another byte: $(cat load.out)"
finish
