/* Layouts of many tensors, of one string or of rules: a side of a conversion or of a workload. */
#ifndef RS_FILE_LAYOUTS_H
#define RS_FILE_LAYOUTS_H

#include "file/model/layout_cache.h"

#include <reshard/file.h>

typedef struct rs_layouts {
  const char *name;    /* "src", begins its errors; borrowed, as all here; NULL: nothing does */
  const char *text;    /* a layout string, or NULL */
  reshard_rules rules; /* or rules */
  int64_t world;       /* that they name, for the caller */
  /* One tensor, whose string is as strict as reshard_layout_parse, and whose errors do not name it. */
  bool alone;
  rs_layout_cache cache; /* tensors of equal shape and string share one layout, which plans see at once */
} rs_layouts;

/* The layout of a tensor; the caller releases it. Errors name side, rule and tensor. */
reshard_status rs_layouts_get(rs_layouts *layouts, const char *tensor, int ndim, const int64_t *shape, int64_t world,
                              reshard_layout *layout);
/* Likewise for a tensor that no layout may cut: that of one without dims, whole on each of its ranks; on the first of
 * flat pieces. */
reshard_status rs_layouts_whole(rs_layouts *layouts, const char *tensor, int ndim, const int64_t *shape, int64_t world,
                                reshard_layout *layout);
/* *dtype = what the tensor's rule says behind its layout; NONE: nothing, or there are no rules. is: the tensor's own.
 * converts: one that a cast leads to will do, else the tensor's alone. RESHARD_ERROR_INVALID naming side, rule, tensor
 * and dtypes. packed: as in rs_model_tensor. blocks: of the dtype; may be NULL. */
reshard_status rs_layouts_dtype(const rs_layouts *layouts, const char *tensor, reshard_dtype is, uint8_t packed,
                                bool converts, reshard_dtype *dtype, reshard_blocks *blocks);
/* Puts side and rule of a tensor before the last error. */
reshard_status rs_layouts_error(const rs_layouts *layouts, const char *tensor, reshard_status status);
/* As reshard_rules_check, where these are rules. Errors name the side. */
reshard_status rs_layouts_check(const rs_layouts *layouts, reshard_model model, int64_t world);
/* True for a tensor without dims that several ranks have: it is whole on each of them. */
bool rs_layout_repeats_scalar(reshard_layout layout);

#endif
