/* A tensor of a model, as a JSON object describes it. Empty in a build without jansson. */
#ifndef RS_FILE_JSON_TENSOR_H
#define RS_FILE_JSON_TENSOR_H

#include "file/ground/json.h"
#include "file/model/model.h"

#ifdef RS_HAVE_JANSSON

/* Appends a tensor: "dtype" and "shape" of an object. *bytes (may be NULL): its bytes.
 * Errors: RESHARD_ERROR_INVALID; RESHARD_ERROR_UNSUPPORTED for a dtype of safetensors that this library lacks. */
reshard_status rs_json_tensor(reshard_model model, const char *where, const char *name, json_t *object, int64_t *bytes);

#endif

#endif
