#!/usr/bin/env bash
# PyTorch's own checkpoints (distcp/, see distcp/make.py): a .distcp directory and a file of torch.save, converted with
# all bytes compared; the summary; as a model; what is refused, with the status.
. "$SOURCE/tests/cli/common.bash" || exit 1
. "$SOURCE/tests/cli/files.bash" || exit 1
recorded=$SOURCE/tests/files/distcp
export LC_ALL=C

expect 0 convert "$recorded/sharded" whole.safetensors --verify --no-digests
says '^source +distcp, 2 files of 2 ranks: 12 tensors'
says '^left out +3 leaves of the source that are no tensors'
same whole.safetensors "$recorded/sharded.safetensors"
expect 0 convert "$recorded/state.pt" state.safetensors --verify --no-digests
says '^source +torch, 1 file: 25 tensors'
says '^left out +10 leaves'
same state.safetensors "$recorded/state.safetensors"
expect 0 convert "$recorded/state.pt" leaves --dst 'rank(0)'
says '^state.json +7 leaves' && says '^left out +3 leaves'
for text in '"optim.state.0.step": 3,' '"optim.lr": 0.001,' '"optim.betas.1": 0.99,' '"name": null' '"size.1": 4'; do
  grep -qF "$text" leaves/state.json || fault "no $text in $(cat leaves/state.json)"
done
expect 0 check leaves
for source in sharded state.pt; do
  expect 0 convert "$recorded/$source" shards --dst 'flat()' --ranks 5 --force --verify
  expect 0 convert shards back.safetensors --force --no-digests
  same back.safetensors "$recorded/${source%.pt}.safetensors"
done
expect 0 convert "$recorded/sharded" again.safetensors --json json
grep -qE '"format": *"distcp"' json || fault "no format in $(cat json)"
grep -qE '"leaves": *3, *"left_out": *0' json || fault "no left_out in $(cat json)"

# Whole tensors of a .pt file are held by what --src says; shards say it themselves.
expect 0 convert "$recorded/state.pt" cut --src 'flat()' --dst 'flat()' --ranks 3
refuse 2 'src: .*shards, which say their own layout' convert "$recorded/sharded" x.safetensors --src 'rank(0)'

# Files of torch.save with an index, as pytorch_model-*.bin: each tensor of the file that the index gives it to.
mkdir bins; for i in 1 2; do cp "$recorded/state.pt" "bins/pytorch_model-0000$i-of-00002.bin"; done
names=$(head -c 4000 "$recorded/state.safetensors" | grep -aoE '"([^"\]|\\.)+":\{"dtype' |
  sed 's/^"//; s/":{"dtype$//')
list() { # FILE: an index of all names, the first in that file, the others in turn in both
  awk -v file="$1" 'BEGIN { printf "{\"metadata\": {}, \"weight_map\": {" }
    { printf "%s\"%s\": \"%s\"", comma, $0, file; comma = ","
      file = "pytorch_model-0000" (1 + NR % 2) "-of-00002.bin" }
    END { print "}}" }' <<<"$names"
}
list pytorch_model-00001-of-00002.bin >bins/pytorch_model.bin.index.json
expect 0 convert bins bins.safetensors --no-digests; says "^unlisted +$(wc -l <<<"$names") tensors"
same bins.safetensors "$recorded/state.safetensors"
expect 0 convert bins/pytorch_model.bin.index.json bins.safetensors --force --no-digests
same bins.safetensors "$recorded/state.safetensors"
list ../state.pt >bins/pytorch_model.bin.index.json; bad 2 "no relative path" convert bins x.safetensors
list none.bin >bins/pytorch_model.bin.index.json; bad 2 "there is no file 'none.bin'" convert bins x.safetensors
rm bins/pytorch_model.bin.index.json; bad 2 'bins' convert bins x.safetensors
bad 2 'both named' convert bins/pytorch_model-00002-of-00002.bin x.safetensors # the name of one stands for the set

# As a model: names, shapes, dtypes alone.
for model in "$recorded/sharded" "$recorded/state.pt" "$recorded/state.safetensors"; do
  expect 0 plan --model "$model" --src 'flat()' --dst 'rank(0)' --ranks 2 --json "${model##*/}.json"
done
grep -q '"tensors": *12' sharded.json || fault 'the model of sharded'
[ "$(grep -o '"tensors": *[0-9]*' state.pt.json)" = "$(grep -o '"tensors": *[0-9]*' state.safetensors.json)" ] ||
  fault 'models differ'

# The output is no more than what could be read.
broken() { rm -rf broken && cp -r "$recorded/sharded" broken && chmod -R u+w broken; }
broken; truncate -s -1 broken/__1_0.distcp; bad 2 "__1_0.distcp': tensor" convert broken x.safetensors
broken; truncate -s -1 broken/.metadata; bad 2 "broken/.metadata': byte" convert broken x.safetensors
broken; rm broken/__0_0.distcp; bad 2 '__0_0.distcp.*No such file' convert broken x.safetensors
broken; rm broken/.metadata; bad 2 'no .metadata' convert broken x.safetensors
broken; : >broken/.metadata; bad 2 'broken/.metadata' convert broken x.safetensors
broken; cp broken/__0_0.distcp broken/__1_0.distcp; bad 2 '__1_0.distcp' convert broken x.safetensors
broken; cp "$recorded/state.safetensors" broken/; bad 2 'which is the checkpoint' convert broken x.safetensors
broken; bad 2 'name its directory' convert broken/__0_0.distcp x.safetensors
broken; sed -i 's/_StorageInfo/_StorageInfx/' broken/.metadata
bad 2 "a _StorageInfo is expected, it is .*[.]_StorageInfx" convert broken x.safetensors
broken; sed -i 's/little/bigxxx/' broken/__0_0.distcp; bad 3 "byte order 'bigxxx'" convert broken x.safetensors
head -c 4000 "$recorded/state.pt" >cut.pt; bad 2 "cut.pt.*no end record" convert cut.pt x.safetensors
: >empty.pt; bad 2 'empty.pt' convert empty.pt x.safetensors
printf 'PK\3\4 nothing of the kind is in here, but 22 bytes and more' >zip.pt
bad 2 'no end record' convert zip.pt x.safetensors
finish
