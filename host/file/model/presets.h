/* Names of published models. */
#ifndef RS_FILE_PRESETS_H
#define RS_FILE_PRESETS_H

#include "base/base.h"

/* RESHARD_ERROR_INVALID: what, the name, and the presets that there are. */
reshard_status rs_preset_error(const char *what, const char *name);

#endif
