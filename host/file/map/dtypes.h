/* Dtypes of the tensors that a conversion makes. */
#ifndef RS_FILE_DTYPES_H
#define RS_FILE_DTYPES_H

#include "file/map/region.h"
#include "file/model/layouts.h"

/* RESHARD_ERROR_INVALID where numbers cannot be converted to a dtype that is asked of all; NONE: it is not. */
reshard_status rs_dtypes_check(reshard_dtype dtype, const reshard_blocks *blocks);

/* Where dtypes of a target come from: the first of a rule of `dst`, a cast of the map, `dtype`, and the source. */
typedef struct rs_dtype_choice {
  const struct reshard_model_s *source; /* NULL: the target is all there is, and nothing is multiplied by scales */
  const rs_names *names;                /* of the source's tensors, by number */
  rs_copy_regions *regions;
  const rs_layouts *src, *dst;
  reshard_dtype dtype;          /* of all tensors with numbers; NONE: their own */
  const reshard_blocks *blocks; /* of it */
} rs_dtype_choice;
/* Gives the target's tensors their dtypes. Scales are appended to the target where they are made, and left out of it,
 * with their regions, where values are multiplied by them. Regions say which these are. Fills converted, unconverted
 * and scaled of the report.
 *
 * Errors, which name tensors and dtypes: RESHARD_ERROR_INVALID, a rule's with its line; RESHARD_ERROR_UNSUPPORTED. */
reshard_status rs_dtypes_choose(const rs_dtype_choice *choice, reshard_model target, reshard_convert_report *report);

/* *other = the tensor without which this one means nothing: of FP8 its scales, of scales the FP8; -1: there is none.
 * names: of all tensors of the model, by number. */
reshard_status rs_dtypes_partner(const rs_names *names, const struct reshard_model_s *model, int64_t tensor,
                                 int64_t *other);

#endif
