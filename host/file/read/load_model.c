/* Models from files: a JSON list of tensors, the header of a safetensors file, or those of another checkpoint. */
#include "base/text.h"
#include "file/format/safetensors.h"
#include "file/model/model.h"
#include "file/read/directory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef RS_HAVE_JANSSON

static reshard_status add_list(reshard_model model, const char *where, json_t *root) {
  if (!json_is_array(root))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a list of {\"name\", \"shape\", \"dtype\"} is expected", where);
  for (size_t i = 0; i < json_array_size(root); i++) {
    json_t *item = json_array_get(root, i), *name = json_object_get(item, "name");
    if (!json_is_object(item) || !json_is_string(name))
      return rs_error(RESHARD_ERROR_INVALID, "%s: item %zu: %s", where, i,
                      json_is_object(item) ? "\"name\" is missing or no string" : "no object");
    RS_TRY(rs_safetensors_add_tensor(model, where, json_string_value(name), item, NULL));
  }
  return rs_model_check_names(model, where);
}

static reshard_status load_checkpoint(const char *path, reshard_model *model);

static reshard_status load_list(const char *where, const char *path, reshard_model *model) {
  char *text;
  int64_t size;
  json_t *root;
  reshard_model made = NULL;
  RS_TRY(rs_read_all(where, path, RS_TEXT_LIMIT, RS_TEXT_WAIT_MS, &text, &size));
  reshard_status status = rs_json_parse(where, text, size, size, &root);
  free(text);
  RS_TRY(status);
  if (json_object_get(root, "weight_map") != NULL) { /* an index */
    json_decref(root);
    return load_checkpoint(path, model);
  }
  status = rs_model_new(&made);
  RS_THEN(status, add_list(made, where, root));
  json_decref(root);
  if (status != RESHARD_SUCCESS)
    reshard_model_free(made);
  else
    *model = made;
  return status;
}

static reshard_status load_header(const char *where, const char *path, reshard_model *model) {
  rs_file file;
  rs_safetensors header;
  RS_TRY(rs_file_open(where, path, 1, &file));
  reshard_status status = rs_safetensors_read(where, &file, &header);
  rs_file_close(&file);
  RS_TRY(status);
  if (header.sharding == NULL && rs_set_has(path, path)) {
    rs_safetensors_free(&header);
    return load_checkpoint(path, model);
  }
  *model = header.model;
  header.model = NULL;
  rs_safetensors_free(&header);
  return RESHARD_SUCCESS;
}

static reshard_status load_text(const char *where, const char *path, reshard_model *model) {
  return rs_ends(path, ".safetensors") ? load_header(where, path, model) : load_list(where, path, model);
}

#else

static reshard_status load_text(const char *where, const char *path, reshard_model *model) {
  (void)path;
  (void)model;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no model files, it was made without jansson", where);
}

#endif

static reshard_status load_checkpoint(const char *path, reshard_model *model) {
  reshard_checkpoint checkpoint = NULL;
  RS_TRY(reshard_checkpoint_open(path, &checkpoint));
  *model = checkpoint->store.model;
  checkpoint->store.model = NULL;
  rs_names_free(&checkpoint->names); /* of the model */
  reshard_checkpoint_close(checkpoint);
  return RESHARD_SUCCESS;
}

/* A directory, or a file that torch.save names so: nothing else of these names is a model. */
static bool is_checkpoint(const char *path) {
  struct stat info;
  return rs_ends(path, ".pt") || rs_ends(path, ".pth") || rs_ends(path, ".bin") ||
         (stat(path, &info) == 0 && S_ISDIR(info.st_mode));
}

reshard_status reshard_model_load(const char *path, reshard_model *model) {
  RS_TRY(RS_GIVEN("reshard_model_load", path, model));
  char where[RS_WHERE];
  if (is_checkpoint(path))
    return load_checkpoint(path, model);
  return load_text(rs_where(where, "model file", path), path, model);
}

reshard_status reshard_model_open(const char *name_or_path, reshard_model *model) {
  RS_TRY(RS_GIVEN("reshard_model_open", name_or_path, model));
  const char *name;
  for (int64_t i = 0; (name = reshard_model_preset_name(i)) != NULL; i++)
    if (strcmp(name, name_or_path) == 0)
      return reshard_model_preset(name_or_path, model);
  if (access(name_or_path, F_OK) != 0 && strchr(name_or_path, '/') == NULL)
    return rs_preset_error("no model file and no preset", name_or_path);
  return reshard_model_load(name_or_path, model);
}
