/* The table of workers' names, for placements. */
#ifndef RS_METADATA_WORKERS_H
#define RS_METADATA_WORKERS_H

#include "base/base.h"
#include "base/text.h"

#include <reshard/metadata.h>

/* Characters of a placement or a name that an error quotes (rs_quote). */
#define RS_QUOTED 96
bool rs_worker_character(char c);
/* Rank of a name of n characters, -1 where it is not in the table; workers may be NULL. */
int64_t rs_workers_find(reshard_workers workers, const char *name, size_t n);

#endif
