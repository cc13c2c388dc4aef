/* A file of torch.save. */
#ifndef RS_FILE_TORCH_STATE_DICT_H
#define RS_FILE_TORCH_STATE_DICT_H

#include "file/read/open.h"

/* Fills store and info from the only file that is open. */
reshard_status rs_open_state_dict(rs_opening *opening);

#endif
