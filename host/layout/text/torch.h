/* PyTorch's spelling of placements, [Shard(0), Replicate()]. */
#ifndef RS_LAYOUT_TEXT_TORCH_H
#define RS_LAYOUT_TEXT_TORCH_H

#include "layout/text/scan.h"

/* RESHARD_ERROR_INVALID with our spelling where placements are spelled so. alone: without a
 * mesh, where our spelling is refused likewise. */
reshard_status rs_refuse_torch_spelling(const rs_scan *scan, bool alone);

#endif
