/* Models and rules: the tensors of a checkpoint by name, and which layout each of them gets.
 *
 * Both are local, immutable once made, and may be read from several threads at once. Texts that come from a file are
 * quoted in errors with the file's name; a file that is missing or malformed is RESHARD_ERROR_INVALID (the caller named
 * the wrong thing), one that cannot be read RESHARD_ERROR_SYSTEM. */
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
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* the first ndim extents */
} reshard_model_tensor;

/* Names of the presets: i from 0 on; NULL past the last. Static lifetime. */
RESHARD_API const char *reshard_model_preset_name(int64_t i);

/* A published checkpoint by name ("llama-3.1-70b"): names, shapes and dtypes as its safetensors files have them, layer
 * by layer in the order of execution. Errors: RESHARD_ERROR_INVALID with the list of names. */
RESHARD_API reshard_status reshard_model_preset(const char *name, reshard_model *model);

/* Reads a model from a file. A path that ends in ".safetensors" is such a file, of which only the header is read, and
 * the tensors come in the header's order. Any other is a JSON list of {"name": string, "shape": [extents], "dtype":
 * string}; more keys are ignored.
 * Errors: RESHARD_ERROR_INVALID with line and column (JSON syntax) or the tensor: missing file, unknown dtype, more
 * than RESHARD_MAX_DIMS dims, negative extents, sizes that overflow int64_t, a name twice, and for safetensors a header
 * longer than the file or data offsets that do not fit shape, dtype, file or one another.
 * RESHARD_ERROR_UNSUPPORTED in a build without jansson. */
RESHARD_API reshard_status reshard_model_load(const char *path, reshard_model *model);

/* The preset of that name, else the file of that name. Errors as reshard_model_load. */
RESHARD_API reshard_status reshard_model_open(const char *name_or_path, reshard_model *model);

/* NULL is allowed. */
RESHARD_API void reshard_model_free(reshard_model model);

/* 0 for NULL. */
RESHARD_API int64_t reshard_model_count(reshard_model model);
/* Bytes of all tensors together; 0 for NULL. */
RESHARD_API int64_t reshard_model_bytes(reshard_model model);
/* Tensor i of 0..count-1. Errors: RESHARD_ERROR_INVALID for i out of range. */
RESHARD_API reshard_status reshard_model_get(reshard_model model, int64_t i, reshard_model_tensor *tensor);

/* Rules: which layout string belongs to a tensor name. A text of lines
 *
 *     PATTERN LAYOUT   # comment
 *
 * where the layout is the rest of the line (reshard_layout_parse reads it), a '#' at the start of a line or after
 * white space begins a comment, and empty lines and a carriage return at the end of a line are skipped. Patterns are
 * the shell's: '*' any characters ('.' and '/' too) or none, '?' one character, "[0-9a]" one of a set, "[!0-9]" one
 * outside, '\' takes the next character as it is. The first rule that matches wins. */
typedef struct reshard_rules_s *reshard_rules;

/* Reads rules from text; name stands for it in errors ("NAME:LINE:COLUMN: ..."), both counted from 1. NULL: "rules".
 * The layout strings are checked for syntax here (box files are read), against a shape only by reshard_rules_layout.
 * Errors: RESHARD_ERROR_INVALID, and those of reshard_layout_parse_world. */
RESHARD_API reshard_status reshard_rules_parse(const char *text, const char *name, reshard_rules *rules);
/* The same from a file. */
RESHARD_API reshard_status reshard_rules_load(const char *path, reshard_rules *rules);
/* NULL is allowed. */
RESHARD_API void reshard_rules_free(reshard_rules rules);

/* The first rule that matches a tensor's name: its layout string (borrowed, lives as long as the rules) and its line
 * (from 1); either may be NULL. Errors: RESHARD_ERROR_INVALID naming the tensor when no rule matches. */
RESHARD_API reshard_status reshard_rules_match(reshard_rules rules, const char *tensor, const char **layout,
                                               int64_t *line);

/* That rule's layout for a shape in a world; world 0 as in reshard_layout_parse. The caller releases it.
 * Errors: those of reshard_rules_match and reshard_layout_parse, the latter with rule and tensor before them. */
RESHARD_API reshard_status reshard_rules_layout(reshard_rules rules, const char *tensor, int ndim, const int64_t *shape,
                                                int64_t world, reshard_layout *layout);

/* The smallest world that holds every rank which some rule names; 0 when none names any (as chunk(0)). */
RESHARD_API reshard_status reshard_rules_world(reshard_rules rules, int64_t *world);

#ifdef __cplusplus
}
#endif
#endif
