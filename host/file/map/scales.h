/* Tensors of FP8 and their scales, by pairs. */
#ifndef RS_FILE_SCALES_H
#define RS_FILE_SCALES_H

#include "file/map/dtypes.h"
#include "file/map/names.h"

/* Choice for a tensor of the target. */
typedef struct rs_chosen {
  reshard_dtype to;
  reshard_blocks blocks; /* of values that get scales, or that have them by a rule; rows 0: none */
  bool multiplied;       /* values, by their scales */
  bool left_out;         /* the scales of these */
  bool unconverted;      /* the dtype that is asked of all leaves it as it is */
  int64_t scales;        /* of values that get them */
} rs_chosen;

typedef struct rs_chooser {
  const rs_dtype_choice *choice;
  reshard_model target;
  rs_chosen *to; /* by tensor of the target */
  bool any;      /* some dtype is said */
} rs_chooser;

/* The values that a tensor has the scales of, by its name; -1: it has none, or there are no such values. */
int64_t rs_scales_of(const rs_names *names, const char *scales);
/* *scales = the tensor with the scales of a tensor, by its name; -1: there is none. */
reshard_status rs_scales_find(const rs_names *names, const char *values, int64_t *scales);

/* Makes what was chosen of a target: appends scales, sets dtypes, leaves scales out that values are multiplied by, and
 * says in the regions which these are. *scaled: how many get scales. */
reshard_status rs_scales_settle(rs_chooser *chooser, int64_t *scaled);

#endif
