#!/usr/bin/env bash
# The test of `reshard trace`, on four virtual GPUs.
[ "${SEES:-1}" = 1 ] ||
  { echo 'skipped: what kernels touch is not seen in this build, so that they take no time'; exit 77; }
VG_DEVICES=4 GPUS=4 exec bash "$SOURCE/tests/cli/trace.sh"
