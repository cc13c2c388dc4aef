/* The inside of a writer of checkpoints. */
#ifndef RS_FILE_WRITER_H
#define RS_FILE_WRITER_H

#include "file/move/store.h"

/* A writer's store (the target of a move, in temporary files until the commit), the path of the temporary,
 * and what it did. */
typedef struct rs_writer_report {
  reshard_file_format format;
  int64_t files, bytes, whole_arrays;
  int64_t digests; /* pieces that have one */
  double reserve_seconds;
  const char
      *linked; /* what a symbolic link at the path leads to: it is replaced. Borrowed of the writer; NULL: none */
} rs_writer_report;
/* As reshard_writer_create, with the mode of files where nothing is replaced, of which the umask takes. packed: the
 * model whose types of packed bytes the tensors have; NULL: they have none. */
reshard_status rs_writer_create(const char *path, int64_t n, const reshard_writer_tensor *tensors, reshard_model packed,
                                const reshard_writer_options *options, int mode, reshard_writer *writer);
const rs_store *rs_writer_store(reshard_writer writer);
/* Another process's part in the directory of shards that a writer of these tensors has made at `temporary`
 * (rs_writer_path), deduplicated, with digests or without: the same store, of which the files of one rank are open. It
 * is synced and abandoned, never committed or published. */
reshard_status rs_writer_join(const char *temporary, int64_t rank, bool digests, int64_t n,
                              const reshard_writer_tensor *tensors, reshard_writer *writer);
/* One file more, of that text, in the directory that is written: no tensors are in it, and readers of checkpoints do
 * not look at it. Before anything is put. */
reshard_status rs_writer_attach(reshard_writer writer, const char *name, const rs_text *text);
/* The temporary file or directory: what the commit will put in place; can be opened as a checkpoint of its kind once
 * all is written. */
const char *rs_writer_path(reshard_writer writer);
void rs_writer_get_report(reshard_writer writer, rs_writer_report *report);
/* The two halves of a commit: fsync of all files and directories (progress may be NULL, non-zero return cancels: the
 * writer can then only be abandoned); putting in place, with nothing more to write. rs_writer_publish frees the writer,
 * whether it succeeds or not. Neither checks what was put. */
reshard_status rs_writer_sync(reshard_writer writer,
                              int (*progress)(void *user, const char *stage, int64_t done, int64_t all), void *user);
reshard_status rs_writer_publish(reshard_writer writer);

#endif
