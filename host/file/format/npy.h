/* The header of an .npy file. */
#ifndef RS_FILE_NPY_H
#define RS_FILE_NPY_H

#include "file/ground/file.h"
#include "file/model/model.h"

#define RS_NPY_MAGIC "\x93NUMPY"

/* Reads it: the tensor, named "tensor", whether its dims are stored in reverse (Fortran order, of 2 dims or more), and
 * where its data begins. raw: the type of data whose descr says its width alone ('<V2'); NONE: not known. Errors:
 * RESHARD_ERROR_INVALID when it is none, the data is not as long as the shape says, or raw does not go with the descr.
 * RESHARD_ERROR_UNSUPPORTED for big-endian data. */
reshard_status rs_npy_read(const char *where, const rs_file *file, reshard_dtype raw, rs_whole_tensor *whole);

#endif
