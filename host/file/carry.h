/* Metadata that the owner of a checkpoint has written, carried to another that is made of it. */
#ifndef RS_FILE_CARRY_H
#define RS_FILE_CARRY_H

#include "file/map/region.h"
#include "file/read/checkpoint.h"

/* Fills `carried` with the owner's metadata of `in` for a target that the regions make. A key that is the name of a
 * tensor follows it under its new name, and goes where it is dropped. Where the tensor is changed, or put together with
 * others, the key is left out, which is a note of `in`. */
reshard_status rs_carry_metadata(reshard_checkpoint in, reshard_model target, const rs_copy_regions *regions,
                                 rs_text_pairs *carried);
/* RESHARD_ERROR_CORRUPT where what was carried is not what is read back. */
reshard_status rs_carry_compare(const rs_text_pairs *carried, reshard_checkpoint back);

#endif
