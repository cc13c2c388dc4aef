/* Files: models, rules, checkpoints, maps, and the conversion of one checkpoint into another.
 *
 *     model        the tensors of a checkpoint by name, without data
 *     rules        the layout of each tensor, by name
 *     checkpoint   tensors with their data, read and written
 *     map          the tensors of one model made from those of another
 *
 * All of it is local to the calling process. Models, rules, maps and opened checkpoints are immutable once made, and
 * may be read from several threads at once. Errors quote texts of a file with the file's name. A file that is missing
 * or malformed is RESHARD_ERROR_INVALID, as the caller named the wrong thing. One that cannot be read or written is
 * RESHARD_ERROR_SYSTEM.
 *
 * A NULL model has 0 tensors and 0 bytes, and a NULL checkpoint a NULL model. Calls that return a status refuse NULL
 * handles (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_FILE_H
#define RESHARD_FILE_H

#include <reshard/dtype.h>
#include <reshard/layout.h>
#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A model: an ordered list of named tensors without data. */
typedef struct reshard_model_s *reshard_model;

typedef struct reshard_model_tensor {
  const char *name; /* UTF-8; borrowed, lives as long as the model */
  /* RESHARD_DTYPE_NONE: unknown. It has one dim, of its bytes (torch, distcp: of its storage). A map may drop it; who
   * moves it gets RESHARD_ERROR_INVALID with its file, name and dtype. */
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* the first ndim extents */
} reshard_model_tensor;

/* Names of the presets: i from 0 on. NULL past the last. Static lifetime. */
RESHARD_API const char *reshard_model_preset_name(int64_t i);

/* Makes the model of a published checkpoint by name ("llama-3.1-70b"). Names, shapes and dtypes are those of its
 * safetensors files, layer by layer in the order of execution. Errors: RESHARD_ERROR_INVALID with the list of names. */
RESHARD_API reshard_status reshard_model_preset(const char *name, reshard_model *model);

/* Reads a model from a file, by the path:
 *
 * - ".safetensors" at the end: such a file, of which only the header is read. Tensors come in the header's order.
 * - a directory, or ".pt", ".pth" or ".bin" at the end: a checkpoint that reshard_checkpoint_open reads, with its
 *   errors.
 * - any other: a JSON list of {"name": string, "shape": [extents], "dtype": string}. More keys are ignored.
 *
 * Errors:
 * - RESHARD_ERROR_INVALID with line and column (JSON syntax) or the tensor: missing file, unknown dtype in a list, a
 *   name twice, more than RESHARD_MAX_DIMS dims, negative extents, sizes that overflow int64_t.
 * - RESHARD_ERROR_INVALID for safetensors: a header longer than the file, or data offsets that do not fit.
 * - RESHARD_ERROR_UNSUPPORTED: a build without jansson.
 *
 * F4, F6 and F8 FNUZ of safetensors are RESHARD_U8, with a last dim of bytes; F4 or F6 whose last dim ends within a
 * byte has one dim, of all bytes. */
RESHARD_API reshard_status reshard_model_load(const char *path, reshard_model *model);

/* Opens the preset of that name, else the file of that name. Errors as in reshard_model_load. */
RESHARD_API reshard_status reshard_model_open(const char *name_or_path, reshard_model *model);

/* NULL is allowed. */
RESHARD_API void reshard_model_free(reshard_model model);

/* 0 for NULL. */
RESHARD_API int64_t reshard_model_count(reshard_model model);
/* Bytes of all tensors together. 0 for NULL. */
RESHARD_API int64_t reshard_model_bytes(reshard_model model);
/* Reads tensor i of 0..count-1. Errors: RESHARD_ERROR_INVALID for i out of range. */
RESHARD_API reshard_status reshard_model_get(reshard_model model, int64_t i, reshard_model_tensor *tensor);

/* Rules: a layout string for each tensor name. A text of lines
 *
 *     PATTERN LAYOUT         # comment
 *     PATTERN LAYOUT DTYPE
 *
 * where the layout is as reshard_layout_parse reads it, and DTYPE as reshard_dtype_parse_blocks. DTYPE says what the
 * tensors are on that side: those of a destination are converted, a source's have it already (reshard_rules_dtype). A
 * '#' at the start of a line or after white space begins a comment. Empty lines and a carriage return at the end of a
 * line are skipped. The first rule that matches wins. Patterns are the shell's:
 *
 *     *        any characters ('.' and '/' too) or none
 *     ?        one character
 *     [0-9a]   one of a set; [!0-9] one outside
 *     \        the next character as it is
 *
 * Rules serve any number of ranks where their layouts name none: chunk(0), flat(), and mesh(fsdp,tp=8;S0,S1). The one
 * dim without a size takes what the world leaves it. reshard_rules_set_size gives sizes where several dims have none.
 *
 * The layout rank(experts.#/128) goes by the number after "experts." (the last such) in the tensor's name. Tensor
 * number i of 128 is held by the rank that the chunk rule gives piece i of 128 over all ranks of the world. The layout
 * refuse(TEXT) is none: a tensor that has it is an error with that text.
 *
 * A tensor without dims, whose layout would cut it, is whole on each rank of the layout: mesh(n@RANKS;R).
 *
 * A line
 *
 *     blocks SUFFIX 128x128
 *
 * says that a tensor NAME SUFFIX has one scale for each block of the last dims of NAME. NAME SUFFIX then has the layout
 * of NAME, which is cut between blocks (reshard_rules_check). */
typedef struct reshard_rules_s *reshard_rules;

/* Reads rules from text. name stands for it in errors ("NAME:LINE:COLUMN: ..."), both counted from 1. NULL: "rules".
 * The layout strings are checked for syntax here, and box files are read. Only reshard_rules_layout checks them against
 * a shape. Errors: RESHARD_ERROR_INVALID, and those of reshard_layout_parse_world. */
RESHARD_API reshard_status reshard_rules_parse(const char *text, const char *name, reshard_rules *rules);
/* Reads rules from a file likewise. */
RESHARD_API reshard_status reshard_rules_load(const char *path, reshard_rules *rules);
/* NULL is allowed. */
RESHARD_API void reshard_rules_free(reshard_rules rules);

/* Finds the first rule that matches a tensor's name. Errors: RESHARD_ERROR_INVALID naming the tensor when no rule
 * matches.
 *
 * - layout: receives its layout string, borrowed: it lives as long as the rules. May be NULL.
 * - line: receives its line, from 1. May be NULL. */
RESHARD_API reshard_status reshard_rules_match(reshard_rules rules, const char *tensor, const char **layout,
                                               int64_t *line);

/* Finds the dtype that the first rule that matches says; RESHARD_DTYPE_NONE: none, or the tensor has the scales of a
 * line of blocks, which have the layout alone. blocks: receives the blocks of f8_e4m3/128x128, else zeros; may be NULL.
 * Errors: those of reshard_rules_match. */
RESHARD_API reshard_status reshard_rules_dtype(reshard_rules rules, const char *tensor, reshard_dtype *dtype,
                                               reshard_blocks *blocks);

/* Makes the layout of the matching rule for a shape in a world; world 0 as in reshard_layout_parse. The caller releases
 * it. Errors: those of reshard_rules_match and reshard_layout_parse, the latter with rule and tensor before them. */
RESHARD_API reshard_status reshard_rules_layout(reshard_rules rules, const char *tensor, int ndim, const int64_t *shape,
                                                int64_t world, reshard_layout *layout);

/* Checks what no tensor shows alone. A line of blocks names a SUFFIX. If a model has NAME and NAME SUFFIX, each
 * rank's runs of indices begin and end at multiples of the block, or at the end. The scales of a rank are then those
 * of its blocks, by their local numbers. A scale without dims is that of all blocks. Local. world as in
 * reshard_layout_parse.
 *
 * Errors: RESHARD_ERROR_INVALID with rule and names: rank, indices and block that do not fit; scales of another shape;
 * those of reshard_rules_layout for these tensors. */
RESHARD_API reshard_status reshard_rules_check(reshard_rules rules, reshard_model model, int64_t world);

/* A line of rules, and what it takes of a model. Strings are borrowed during the call of the visitor. */
typedef struct reshard_rule_use {
  const char *file; /* name of the rules */
  int64_t line;
  const char *pattern, *layout; /* as written; of blocks "blocks" and "SUFFIX 128x128" */
  int64_t tensors, bytes;       /* a tensor counts once: scales at the line of their blocks */
  const char *largest;          /* of these tensors, by bytes; NULL: none */
  int64_t largest_bytes;
  reshard_dtype dtype;   /* behind the layout; RESHARD_DTYPE_NONE: none */
  reshard_blocks blocks; /* of it; zeros: none */
} reshard_rule_use;
/* Non-zero return ends the walk. */
typedef int (*reshard_rule_visitor)(void *user, const reshard_rule_use *use);
/* Visits all lines of rules in their order. Errors: as reshard_rules_match of a tensor. */
RESHARD_API reshard_status reshard_rules_use(reshard_rules rules, reshard_model model, reshard_rule_visitor visit,
                                             void *user);

/* Smallest world that holds every rank which some rule names. 0 when none names any (as chunk(0)). */
RESHARD_API reshard_status reshard_rules_world(reshard_rules rules, int64_t *world);

/* Sets the size of a mesh dim in every rule whose layout writes it without one. World and layouts are then as if it had
 * been written. Not while other threads use the rules. Layout strings that reshard_rules_match has given for changed
 * rules are gone.
 *
 * - mesh_dim, size: name of the dim, and its size, 1 or more.
 * - changed: receives the number of changed rules. May be NULL.
 *
 * Errors: RESHARD_ERROR_INVALID where a mesh then has more ranks than 63 bits, or not as many as its rule names. No
 * rule has then changed. */
RESHARD_API reshard_status reshard_rules_set_size(reshard_rules rules, const char *mesh_dim, int64_t size,
                                                  int64_t *changed);

/* A checkpoint: tensors whose data is in files. One of
 *
 *     npy          an .npy file (numpy, versions 1 to 3, C or Fortran order): one tensor, named "tensor"
 *     safetensors  a .safetensors file of whole tensors
 *     whole        a directory of .safetensors files of whole tensors
 *     shards       a directory of .safetensors files of shards, or one such file
 *     distcp       a directory of .distcp files and .metadata; read only
 *     torch        a file of torch.save (.pt, .pth); read only
 *
 * - whole: with or without an index file (model.safetensors.index.json, as Hugging Face has it), which may be the path
 *   itself. An index is what holds: of its files, in subfolders too, tensors that it gives to another file or does not
 *   list are left out. Every tensor that it lists must be there. The name of a file stands for all that differ from it
 *   by "-I-of-N" alone.
 * - shards: as PyTorch's distributed checkpoint writes them by its consolidated-safetensors storage, with
 *   DCP_SHARDING_INFO in "__metadata__". Names of files carry no meaning. Ours add a "reshard" entry to the metadata.
 *   With it missing files and gaps are errors. Without it the shapes are inferred (the largest
 *   offset + size per dim), and every file is a rank of its own. One such file alone is a set of one file.
 * - distcp: as PyTorch's distributed checkpoint writes them by default (FileSystemWriter). Shapes and shards are those
 *   of .metadata. The rank of a shard is R of its file's name __R_N.distcp where all names are such; if not, every file
 *   is a rank of its own.
 * - torch: a nested dict or list of tensors, named by their keys and indices with '.' between. Or one tensor, named
 *   "tensor". Tensors may share a storage. Or several such files and their index (pytorch_model.bin.index.json).
 *
 * Nothing of a pickle is run. Dicts (OrderedDict, defaultdict, Counter), lists, tuples and sets are gone through; a
 * value of another class is left out and counted (left_out). A tensor that can be reached below such a value alone is
 * an error, which leave_out turns into a count. Numbers, texts, bools and None are read (leaves). Checksums of zip
 * archives are not looked at, as PyTorch does not.
 *
 * Source: the formats' own documents; torch.distributed.checkpoint HuggingFaceStorageWriter and -Reader,
 * FileSystemWriter and -Reader; torch.save. */
typedef struct reshard_checkpoint_s *reshard_checkpoint;

typedef enum reshard_file_format {
  RESHARD_FORMAT_NPY = 1,
  RESHARD_FORMAT_SAFETENSORS,
  RESHARD_FORMAT_WHOLE,
  RESHARD_FORMAT_SHARDS,
  RESHARD_FORMAT_DISTCP,
  RESHARD_FORMAT_TORCH
} reshard_file_format;
/* "npy", "safetensors", "whole", "shards", "distcp", "torch"; else "unknown". */
RESHARD_API const char *reshard_file_format_string(reshard_file_format format);

/* Opens a checkpoint for reading: headers only, no data. Files stay open until the checkpoint is closed.
 *
 * Errors, which name file and tensor:
 * - RESHARD_ERROR_INVALID: missing or truncated files, headers that do not fit their file, names twice, gaps and
 *   overlaps between shards, files that disagree, a malformed pickle, tensors below classes that are not read.
 * - RESHARD_ERROR_INVALID for the temporary of a reshard_writer, which is not in place yet.
 * - RESHARD_ERROR_CORRUPT: a pickle or a JSON text that would take more memory than 64 MiB and 8 times the file.
 * - RESHARD_ERROR_UNSUPPORTED: big-endian data.
 * - RESHARD_ERROR_UNSUPPORTED for safetensors in a build without jansson.
 * - RESHARD_ERROR_UNSUPPORTED for distcp and torch: shards that were transformed or are safetensors, TorchScript,
 *   torch.save before 1.6 (with two lines of Python that make safetensors of it); tensors that are not contiguous,
 *   but in Fortran order, sparse, quantized, conjugated or of a subclass. */
RESHARD_API reshard_status reshard_checkpoint_open(const char *path, reshard_checkpoint *checkpoint);
/* Opens the files that the ranks of an engine have written each for itself, where no metadata says how tensors were
 * cut. The result has the format shards.
 *
 * - path: a directory.
 * - pattern: of the files' names, a shell pattern with "{R}" for the rank in digits. NULL: the first of
 *   "model-rank-{R}-part-*.safetensors" and "consolidated.{R}.pth" that some files have. A rank may have several files.
 * - layout, rules: one of them, the other NULL: what each rank has. chunk, mesh and rank alone.
 * - world: number of ranks, each with a file. 0: as many as the layouts or the files name.
 *
 * A tensor's extent is the sum of those of its parts in each dim that is cut. Replicas are read and compared.
 *
 * Errors: those of reshard_checkpoint_open, and RESHARD_ERROR_INVALID: a rank without a file; a rank that has another
 * shape than its layout says, with both; replicas that differ, with both files. */
RESHARD_API reshard_status reshard_checkpoint_open_ranks(const char *path, const char *pattern, const char *layout,
                                                         reshard_rules rules, int64_t world,
                                                         reshard_checkpoint *checkpoint);
/* NULL is allowed. */
RESHARD_API void reshard_checkpoint_close(reshard_checkpoint checkpoint);

typedef struct reshard_checkpoint_info {
  reshard_file_format format;
  int64_t tensors, files;
  int64_t bytes;        /* of the global tensors */
  int64_t stored_bytes; /* of data in the files; replicas count each time */
  /* Ranks. shards: of its metadata, else the number of files. distcp: of the shards' files. Other formats: 1. */
  int64_t world;
  int described; /* shards: 1 when "reshard" metadata was there, 0 when shapes were inferred; distcp: 1 */
  /* distcp, torch: leaves that are no tensors. Numbers, texts, bools and None, which reshard_state_load reads; others,
   * which nothing reads. */
  int64_t leaves, left_out;
  int64_t left_out_tensors, left_out_bytes; /* leave_out: tensors that were left out, and their bytes */
  /* With an index: tensors of its files that it does not list, or gives to another file: left out */
  int64_t unlisted;
  int64_t metadata; /* entries of reshard_checkpoint_metadata */
} reshard_checkpoint_info;
RESHARD_API reshard_status reshard_checkpoint_get_info(reshard_checkpoint checkpoint, reshard_checkpoint_info *info);

/* Names, dtypes and global shapes. Borrowed: lives as long as the checkpoint. NULL for NULL. */
RESHARD_API reshard_model reshard_checkpoint_model(reshard_checkpoint checkpoint);
/* Finds the number of the tensor of that name. Errors: RESHARD_ERROR_INVALID naming it when there is none. */
RESHARD_API reshard_status reshard_checkpoint_find(reshard_checkpoint checkpoint, const char *name, int64_t *tensor);
/* Entry i of the metadata that the owner has written into the .safetensors files ("__metadata__"), without the entries
 * that are about shards and digests. Entries of all files are united, and a key with two values is left out. key and
 * value are borrowed: they live as long as the checkpoint. Errors: RESHARD_ERROR_INVALID for i outside of
 * 0..info.metadata-1. */
RESHARD_API reshard_status reshard_checkpoint_metadata(reshard_checkpoint checkpoint, int64_t i, const char **key,
                                                       const char **value);
/* Makes the layout of tensor i as it is stored: rank(0) for whole tensors; for shards and distcp that of metadata or
 * offsets. The caller releases it. */
RESHARD_API reshard_status reshard_checkpoint_layout(reshard_checkpoint checkpoint, int64_t tensor,
                                                     reshard_layout *layout);
/* Tells where piece i of a tensor lies in a file: a dense box, row-major, little-endian. Local.
 *
 * - i: 0, 1, ... A tensor that one file has whole has one piece. A replica is a piece of its own. Pieces are in the
 *   order of the ranks of reshard_checkpoint_layout.
 * - file: the path, borrowed: it lives as long as the checkpoint. offset: in bytes. box: global offset and extent.
 *
 * The file may be mapped by the caller. What becomes of it, or of its path, after the open is not looked at.
 *
 * Errors: RESHARD_ERROR_INVALID: there is no piece i, which names their number. RESHARD_ERROR_UNSUPPORTED: bytes that
 * are no such box: Fortran order, more than 64 boxes in one, or zeros that no file has. */
RESHARD_API reshard_status reshard_checkpoint_stored(reshard_checkpoint checkpoint, int64_t tensor, int64_t i,
                                                     const char **file, int64_t *offset, reshard_box *box);
/* Maps a tensor of which one piece is all: no byte is read before it is touched. Local.
 *
 * - data: its elements, row-major, little-endian, read-only, of the file that was opened, whatever its path names now.
 *   They need not be aligned to their size. NULL for a tensor without elements.
 *
 * It stays after the checkpoint is closed, until reshard_checkpoint_unmap. A file that becomes shorter meanwhile is
 * SIGBUS to who touches what is gone. Bytes are not compared with digests.
 *
 * Errors: RESHARD_ERROR_UNSUPPORTED: a tensor in pieces, and as of reshard_checkpoint_stored. RESHARD_ERROR_SYSTEM: the
 * file has become shorter, or cannot be mapped. */
RESHARD_API reshard_status reshard_checkpoint_map(reshard_checkpoint checkpoint, int64_t tensor, const void **data);
/* Ends that. bytes: of the tensor. Local; NULL is allowed. */
RESHARD_API void reshard_checkpoint_unmap(const void *data, size_t bytes);
/* Reads one rank's part of a tensor, in any layout of its shape: rank(0) reads the whole tensor, boxes(0:[2,0]+[1,8]) a
 * part.
 *
 * - buffers: the rank's buffers, reshard_layout_buffer_count of them, contiguous. Pointers of empty ones may be NULL.
 * - threads: 0: RESHARD_THREADS, else one per core; no more than there are 4 MiB, so that a small read starts none.
 *
 * Errors: RESHARD_ERROR_SYSTEM when a file became shorter or cannot be read. The buffers may then be written in part.
 */
RESHARD_API reshard_status reshard_checkpoint_read(reshard_checkpoint checkpoint, int64_t tensor, reshard_layout layout,
                                                   int64_t rank, int threads, void *const *buffers);
/* Reads a box of a tensor into contiguous, row-major memory of its extent. Local.
 *
 * - box: global offset and extent. buffer may be NULL where it has no elements.
 * - threads: as of reshard_checkpoint_read. A row, or another box that lies in one run of a file, is one read.
 *
 * Errors: RESHARD_ERROR_INVALID: a box that reaches beyond the tensor. Those of reshard_checkpoint_read. */
RESHARD_API reshard_status reshard_checkpoint_read_box(reshard_checkpoint checkpoint, int64_t tensor,
                                                       const reshard_box *box, int threads, void *buffer);

/* An entry of "__metadata__" of .safetensors files: what its owner has written about the tensors. */
typedef struct reshard_text_pair {
  const char *key, *value; /* UTF-8 */
} reshard_text_pair;

/* A checkpoint that is being written, and appears under its path complete or not at all. Everything goes to a sibling
 * temporary (".NAME.reshard-..."), which is synced and put in place by one rename. The temporary is locked while it is
 * in use. The next writer of the same path removes those that a killed process has left behind. Space is reserved
 * before the first byte is written. One thread at a time. */
typedef struct reshard_writer_s *reshard_writer;

typedef struct reshard_writer_tensor {
  const char *name; /* borrowed during the call */
  reshard_dtype dtype;
  reshard_layout layout; /* Borrowed during the call; all of one world. In whole formats one rank holds all of it. */
} reshard_writer_tensor;

/* Begin with RESHARD_WRITER_OPTIONS_DEFAULTS, or set `size` to RESHARD_WRITER_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_writer_options {
  size_t size;
  int force; /* non-zero: replace what is there (a directory only when it holds nothing but a checkpoint) */
  int dedup; /* non-zero: equal boxes of several ranks are stored once, by the lowest of them */
  /* Above 0: a directory of whole tensors and model.safetensors.index.json. Each file has at most so many bytes; a
   * larger tensor has a file of its own. */
  int64_t index_bytes;
  int no_digests; /* non-zero: no digests in the headers of .safetensors files (see reshard_checkpoint_check) */
  /* Entries of "__metadata__" for each .safetensors file, borrowed during the call. Not "reshard", "reshard_digests",
   * "DCP_VERSION" and "DCP_SHARDING_INFO", which the writer makes. "format" (default "pt") is "pt" in files of shards,
   * and comes back when they are joined. */
  int64_t nmetadata;
  const reshard_text_pair *metadata;
} reshard_writer_options;
#define RESHARD_WRITER_OPTIONS_INIT sizeof(reshard_writer_options)
#define RESHARD_WRITER_OPTIONS_DEFAULTS \
  { sizeof(reshard_writer_options), 0, 0, 0, 0, 0, NULL }

/* Begins a checkpoint. The path decides the format: ".npy" (one tensor of a dtype that numpy has), ".safetensors",
 * else a directory: of whole tensors with index_bytes, else of shards named
 * shard-0000R-model-0000j-of-0000k.safetensors (R = rank + 1). The headers have digests unless no_digests is set, or
 * the library was built without xxhash.
 *
 * With force a file takes the place of a regular file, and a directory that of one in which there are only regular
 * files named *.safetensors or *.json. A symbolic link is followed, as cp does, unless another user has put it into
 * a sticky directory. Modes are those of what is replaced.
 *
 * Errors:
 * - RESHARD_ERROR_INVALID: the path is there (without force) or in a missing directory, names twice, a layout that
 *   does not suit the format.
 * - RESHARD_ERROR_UNSUPPORTED: a dtype that the format lacks.
 * - RESHARD_ERROR_SYSTEM: no space, no permission, a limit on open files or the size of a file. */
RESHARD_API reshard_status reshard_writer_create(const char *path, int64_t n, const reshard_writer_tensor *tensors,
                                                 const reshard_writer_options *options, reshard_writer *writer);
/* Writes one rank's part of a tensor from the rank's buffers (as in reshard_checkpoint_read). */
RESHARD_API reshard_status reshard_writer_put(reshard_writer writer, int64_t tensor, int64_t rank,
                                              const void *const *buffers);
/* Syncs, puts in place, and frees the writer, also after an error. Errors: RESHARD_ERROR_INVALID naming a tensor and
 * rank that were never put; RESHARD_ERROR_SYSTEM. After an error nothing of the checkpoint is there. */
RESHARD_API reshard_status reshard_writer_commit(reshard_writer writer);
/* Removes all that was written, and frees the writer. NULL is allowed. */
RESHARD_API void reshard_writer_abandon(reshard_writer writer);

/* Digests. A writer, a conversion and a save give .safetensors files digests, those of whole tensors and of shards.
 * One digest stands for each MiB of each box, and one for the header: the entry "reshard_digests" of "__metadata__"
 * (docs/files.md). An .npy file has no place for them, a header that would be over 100 MB with them has none. Files
 * without are read as ever.
 *
 * Begin with RESHARD_CHECK_OPTIONS_DEFAULTS, or set `size` to RESHARD_CHECK_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_check_options {
  size_t size;
  int threads; /* 0: RESHARD_THREADS, else one per core */
  /* Called by one thread at a time, with one line of text, which is borrowed during the call: wrong 1 for a header or
   * bytes that are not those that were written, naming file, tensor, box and bytes; 0 for a file that has no digests.
   * May be NULL. */
  void (*found)(void *user, int wrong, const char *text);
  int (*progress)(void *user, const char *stage, int64_t done, int64_t all); /* as in reshard_convert_options */
  void *user;
} reshard_check_options;
#define RESHARD_CHECK_OPTIONS_INIT sizeof(reshard_check_options)
#define RESHARD_CHECK_OPTIONS_DEFAULTS \
  { sizeof(reshard_check_options), 0, NULL, NULL, NULL }

typedef struct reshard_check_report {
  int64_t files, unchecked_files; /* all; those without digests */
  int64_t checked_bytes;          /* of headers and data that are right */
  int64_t wrong;                  /* pieces that are not; a header that is not counts as one */
  int from_device;                /* 1: nothing that was checked came from the page cache */
} reshard_check_report;

/* Reads the files of a checkpoint and checks them by their digests: a directory, or one file, which may be a shard of a
 * set. A directory is opened as reshard_checkpoint_open does, but gaps and overlaps are not looked for. What the system
 * has in its page cache is dropped before, where it lets us. options and report may be NULL; the report is written on
 * success, and with RESHARD_ERROR_CORRUPT.
 *
 * Errors:
 * - RESHARD_ERROR_CORRUPT: the first that is wrong, also what reshard_checkpoint_open calls malformed.
 * - RESHARD_ERROR_INVALID: no such path.
 * - RESHARD_ERROR_UNSUPPORTED: a build without xxhash, and a file that has digests. */
RESHARD_API reshard_status reshard_checkpoint_check(const char *path, const reshard_check_options *options,
                                                    reshard_check_report *report);

/* A map: the tensors of one model made from those of another. A text of lines
 *
 *     TARGET = SOURCE   # comment
 *     drop(NAME)
 *
 * One side is a name, the other a name or an operation on names and operations (at most 64 deep):
 *
 *     concat(DIM; X, Y, ...)   one after the other along a dim
 *     stack(X, Y, ...)         along a new dim 0; stack(DIM; X, Y, ...): along a new dim, which is DIM of the result
 *     interleave(DIM,8; X, Y)  along a dim, 8 equal groups of each in turn
 *     transpose(X)             the last two dims swapped; transpose(1,2,0; X): dim i of the result is dim 1, 2, 0 of X
 *     cast(bf16; X)            numbers of another dtype, converted once; on the right side, and no cast inside of it
 *
 * Negative dims count from the end. Operations on the right side put tensors together. On the left they take apart the
 * tensor that the right side names. concat and interleave there give sizes along the dim ("q.weight:4096"); parts
 * without a size share the rest equally. A part of concat may be no tensor: zeros():N on the right, N indices of zero
 * bytes; drop():N on the left, N indices that are left out. An operation may go on over lines inside its parentheses.
 * drop takes tensors and makes none.
 *
 * A name is any characters but white space and ( ) , ; = : # " *, or is quoted, all of it or a part. Quoted it is "any
 * but the end of a line", with \" and \\ for these two. A '*' outside of quotes stands for one or more characters other
 * than '.'. The first '*' of each name on a line stands for the same, the second likewise, and so on. The name '*'
 * alone stands for any name. A line with '*' is applied once for each match in the source, in the source's order, and
 * takes only tensors that no line before it has taken. Names without '*' may be taken any number of times. "* = *"
 * copies all that is left.
 *
 * A name that is the only part of stack or concat may have one '*' more than the other names of its line: one part for
 * each index 0, 1, 2, ... at its last '*': "layers.*.w = stack(layers.*.experts.*.w)". On the left side stack makes as
 * many parts as the dim has, concat as many as fit ("experts.*.w:768"). */
typedef struct reshard_map_s *reshard_map;

/* Reads a map from text. name stands for it in errors ("NAME:LINE:COLUMN: ..."), both counted from 1. NULL: "map".
 * Errors: RESHARD_ERROR_INVALID. */
RESHARD_API reshard_status reshard_map_parse(const char *text, const char *name, reshard_map *map);
/* Reads a map from a file likewise. */
RESHARD_API reshard_status reshard_map_load(const char *path, reshard_map *map);
/* NULL is allowed. */
RESHARD_API void reshard_map_free(reshard_map map);
/* Makes the model of the tensors that a map makes of another model's, in the order of its lines. Scales that casts make
 * are behind them all. map NULL: the same tensors. The caller frees the model.
 *
 * Errors: RESHARD_ERROR_INVALID with line and names:
 * - a source that is not there or that another line has taken, source tensors that no line takes;
 * - indices with gaps, shapes, dtypes or blocks that do not fit;
 * - a line with '*' that nothing matches, a target twice. */
RESHARD_API reshard_status reshard_map_model(reshard_map map, reshard_model source, reshard_model *target);

/* Options of a conversion of one checkpoint into another: cut, reshard, join, fuse. Data goes from file to file in
 * tiles that stay in the cache, by a plan each. Memory in use does not depend on the size of the data. Begin with
 * RESHARD_CONVERT_OPTIONS_DEFAULTS, or set `size` to RESHARD_CONVERT_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_convert_options {
  size_t size;
  const char *src, *dst; /* for all tensors, as a rule's; NULL: rules, or where they are NULL too: rank(0) */
  /* Layouts by name of the source tensor, and of the target tensor. A source of shards or distcp has its own layouts:
   * src and src_rules are an error there. Of a directory of
   * files of ranks (reshard_checkpoint_open_ranks, its usual patterns) they say what each rank has. */
  reshard_rules src_rules, dst_rules;
  reshard_map map; /* NULL: every tensor as it is */
  int64_t world; /* Ranks of out. 0: of dst, else those of in (its shards', or those of src). Files of ranks: of in. */
  int force, dedup; /* as in reshard_writer_options */
  /* Non-zero: checks what is read of the source by its digests, where it has some. Reads back and compares every byte
   * before it is put in place, past the page cache where the system allows. */
  int verify;
  int64_t index_bytes; /* as in reshard_writer_options */
  int no_digests;      /* as in reshard_writer_options */
  int threads;         /* 0: RESHARD_THREADS, else one per core */
  /* Called by the calling thread about ten times a second while data moves. Receives bytes done and to be done of one
   * stage ("moving", "syncing", "comparing"). Non-zero return cancels: RESHARD_ERROR_CANCELLED, nothing is left. May be
   * NULL. */
  int (*progress)(void *user, const char *stage, int64_t done, int64_t all);
  void *user;
  /* Dtype of the data of an .npy file whose header says its width alone ('<V2'), as numpy saves bf16 and the like. */
  reshard_dtype source_dtype;
  /* Receives what is no error and should be known, as one line of text, borrowed during the call: the file that was
   * replaced behind a symbolic link at out; sets of files in a directory without an index; metadata that is left out.
   * May be NULL. */
  void (*note)(void *user, const char *text);
  /* Called once before anything is written, with the models of source and target, which are borrowed. May be NULL. */
  void (*models)(void *user, reshard_model source, reshard_model target);
  /* Non-zero: tensors of unknown dtypes, and of torch and distcp below classes that are not read, are left out, and
   * counted in the report. 0: an error */
  int leave_out;
  /* Dtype of all tensors of out that hold numbers: f64, f32, f16, bf16, f8_e4m3, f8_e5m2. Rules and casts of a map go
   * before it. Others stay as they are. FP8 whose name with "_scale_inv" behind is a tensor stays with that, but where
   * the dtype is f32, f16 or bf16: then it is multiplied by these scales, which are left out.
   * RESHARD_DTYPE_NONE: each its own. */
  reshard_dtype dtype;
  /* Of dtype f8_e4m3: tensors of 2 dims, or of 3, that are f32, f16 or bf16 become it, and NAME_scale_inv has the
   * scales. All others stay as they are. Zeros: a cast without scales. */
  reshard_blocks blocks;
} reshard_convert_options;
#define RESHARD_CONVERT_OPTIONS_INIT sizeof(reshard_convert_options)
#define RESHARD_CONVERT_OPTIONS_DEFAULTS \
  { \
    sizeof(reshard_convert_options), NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, \
        RESHARD_DTYPE_NONE, NULL, NULL, 0, RESHARD_DTYPE_NONE, { \
      0, 0, RESHARD_DTYPE_NONE \
    } \
  }

typedef struct reshard_convert_report {
  reshard_checkpoint_info source;
  reshard_file_format format; /* of the target */
  int64_t tensors, files, world;
  int64_t bytes;          /* of data written */
  int64_t wire_bytes;     /* bytes that would travel between ranks, were they in memory */
  int64_t leaves;         /* numbers and texts of the source that were written to state.json: shards alone have one */
  int64_t whole_arrays;   /* Arrays of more than 64 boxes, stored whole. Only this library can read them. */
  int64_t gapped, haloed; /* target tensors that cannot be read back: not covered; boxes that overlap */
  int64_t scalars;        /* target tensors without dims that several ranks have, each whole */
  int64_t digests;        /* pieces of the target that have a digest */
  int64_t converted;      /* target tensors of another dtype than a tensor that they are made of */
  int64_t unconverted;    /* target tensors that `dtype` has left as they are */
  int64_t scaled;         /* target tensors of FP8 that got scales, one tensor more for each */
  int64_t checked_bytes;  /* verify: of the source whose digests are right */
  int from_device;        /* verify: 1 where the target was read from its device, 0 where from the page cache */
  double open_seconds;    /* headers of the source, plans, headers of the target */
  double reserve_seconds; /* space on the target's file system */
  double move_seconds;    /* data from file to file */
  double sync_seconds;    /* until data is on the device, and in place */
  double verify_seconds;
} reshard_convert_report;

/* Converts the checkpoint in to the checkpoint out. report may be NULL; it is written on success. After an error `out`
 * is as it was.
 *
 * Errors: those of reshard_checkpoint_open, reshard_writer_create, reshard_layout_parse, reshard_rules_check,
 * reshard_map_model, and
 * - RESHARD_ERROR_INVALID: out is in, or over it; a rule's dtype that its tensor has no cast to; numbers with scales
 *   that are wider than FP8, or cast by a map; scales of another shape or dtype, or without their values; a rank of out
 *   that has a part of a block.
 * - RESHARD_ERROR_UNSUPPORTED: FP8 with scales that were to be f64 or f8_e5m2.
 * - RESHARD_ERROR_SYSTEM: in changes while it is read.
 * - RESHARD_ERROR_CORRUPT: verify finds another byte than was written, or bytes of the source that are not those of its
 *   digest. So is a malformed header of a .safetensors file. */
RESHARD_API reshard_status reshard_convert(const char *in, const char *out, const reshard_convert_options *options,
                                           reshard_convert_report *report);

#ifdef __cplusplus
}
#endif
#endif
