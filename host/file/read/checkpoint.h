/* An open checkpoint. */
#ifndef RS_FILE_CHECKPOINT_H
#define RS_FILE_CHECKPOINT_H

#include "file/ground/leaves.h"
#include "file/ground/names.h"
#include "file/ground/text_pairs.h"
#include "file/move/store.h"

/* True for formats that say themselves which rank has what. */
static inline bool rs_has_ranks(reshard_file_format format) {
  return format == RESHARD_FORMAT_SHARDS || format == RESHARD_FORMAT_DISTCP;
}

struct reshard_checkpoint_s {
  rs_store store;
  reshard_checkpoint_info info;
  rs_names names;   /* of the tensors; the text is the model's */
  rs_leaves leaves; /* numbers and texts of torch and distcp */
  bool directory;   /* known by device and inode, not by its name */
  uint64_t device, inode;
  rs_text_pairs owner; /* entries of "__metadata__" of its files that are its owner's */
  RS_VEC(char) notes;  /* lines that whoever opens it should know, a NUL behind each */
};
/* Appends a line to the notes. */
reshard_status rs_checkpoint_note(reshard_checkpoint checkpoint, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The arguments of reshard_checkpoint_open_ranks; borrowed. */
typedef struct rs_rank_files {
  const char *pattern, *layout; /* pattern NULL: a usual one; layout NULL: rules */
  reshard_rules rules;
  int64_t world; /* 0: as many as the layouts or the files name */
} rs_rank_files;
/* All zero: as reshard_checkpoint_open. */
typedef struct rs_checkpoint_options {
  /* Tensors need not be covered, boxes may overlap, and a writer's temporary is not refused. The checkpoint is then
   * compared with, never a source. */
  bool gaps_allowed;
  bool check;                 /* what is read is checked by the digests that files have */
  const rs_rank_files *ranks; /* NULL: files that say themselves what is in them */
  bool leave_out;             /* tensors below classes that are not read, or of unknown dtypes, are left out */
  reshard_dtype source_dtype; /* of an .npy file that names none; NONE: it is refused */
} rs_checkpoint_options;
reshard_status rs_checkpoint_open(const char *path, const rs_checkpoint_options *options,
                                  reshard_checkpoint *checkpoint);
/* Bytes whose digest was found right so far; files without digests. */
int64_t rs_checkpoint_checked(reshard_checkpoint checkpoint, int64_t *unchecked);
/* RESHARD_ERROR_INVALID, for a call, where a tensor of that number or an argument is missing. */
reshard_status rs_checkpoint_given(const char *call, reshard_checkpoint checkpoint, int64_t tensor, const void *out);
/* RESHARD_ERROR_SYSTEM when its path, a directory's, leads to another directory by now: what is read from there by name
 * does not belong to what was opened. */
reshard_status rs_checkpoint_in_place(reshard_checkpoint checkpoint, const char *path);
/* RESHARD_ERROR_SYSTEM naming a file that is not as it was when it was opened (size, time of last change). */
reshard_status rs_checkpoint_unchanged(reshard_checkpoint checkpoint);

#endif
