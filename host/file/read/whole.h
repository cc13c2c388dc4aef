/* Checkpoints of whole tensors. */
#ifndef RS_FILE_WHOLE_H
#define RS_FILE_WHOLE_H

#include "file/read/layout_cache.h"
#include "file/read/open.h"

/* Appends a tensor to the store: model, layout, stored array. */
reshard_status rs_open_add(rs_opening *opening, rs_layout_cache *layouts, const rs_whole_tensor *whole);
/* Fills the store from headers of whole tensors, and bytes stored and world of the info. */
reshard_status rs_open_whole(rs_opening *opening);

#endif
