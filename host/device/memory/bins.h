/* Free blocks by size. */
#ifndef RS_DEVICE_MEMORY_BINS_H
#define RS_DEVICE_MEMORY_BINS_H

#include "device/memory/pool_internal.h"

void rs_pool_bins_init(rs_pool_bins *bins);
void rs_pool_bins_put(rs_pool_bins *bins, rs_pool_block *block);
void rs_pool_bins_remove(rs_pool_bins *bins, rs_pool_block *block);
/* A block of `size` at least, and little more where there is one; NULL: none. */
rs_pool_block *rs_pool_bins_find(const rs_pool_bins *bins, size_t size);

#endif
