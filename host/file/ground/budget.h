/* Memory that a reader may take: what a file describes is held in proportion to the file, whatever it claims. */
#ifndef RS_FILE_BUDGET_H
#define RS_FILE_BUDGET_H

#include "base/base.h"

/* A reader of a file of so many bytes takes 64 MiB and 8 times these at most. */
int64_t rs_budget_limit(int64_t file_bytes);
/* Errors: RESHARD_ERROR_CORRUPT with both numbers where `taken` is more than the limit. where begins the text. */
reshard_status rs_budget_check(const char *where, int64_t file_bytes, int64_t taken);

#endif
