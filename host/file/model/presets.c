/* Published checkpoints, made from their configurations.
 *
 * A family is a table of parts in the order of execution. A part has a place: before the layers, in each layer, in each
 * dense or mixture-of-experts layer, for each expert, in the prediction layer, or after the layers. It also has its
 * name there, its dtype, and the extents of its shape. A preset is a family and the numbers of its config.json.
 *
 * Checked against what is published (tensors; bytes without the files' headers):
 *   llama-3.1-8b          291   16,060,522,496   both as in the checkpoint's index
 *   llama-3.1-70b         723  141,107,412,992   both as in the index
 *   qwen3-30b-a3b      18,867   61,064,245,248   both as in the index
 *   qwen3-235b-a22b    36,945  470,187,269,120   both as in the index
 *   deepseek-v3        91,991  688,574,839,360   the elements per dtype (680,571,043,840 F8_E4M3, 3,918,786,560 BF16,
 *     41,555,600 F32) are those that the hub counts. The number of tensors is from the structure alone; it fits the
 *     688,586,727,753 bytes of the 163 files, which leave 129 bytes of header a tensor. The prediction layer 61 with
 *     its own embedding and head is included, as it is in the files. */

#include "base/text.h"
#include "file/model/model.h"

#include <stdio.h>
#include <string.h>

typedef enum part_place { BEFORE, LAYER, DENSE, SPARSE, EXPERT, PREDICT_IN, PREDICT_OUT, AFTER } part_place;

/* clang-format off */
/* Extents of shapes. ONE as the second makes a vector. */
typedef enum extent {
  ONE, VOCAB, HIDDEN, HIDDEN2, HEADS, KV_HEADS, HEAD, DENSE_MLP, EXPERT_MLP, SHARED_MLP, EXPERTS, /* any family */
  Q_LORA, KV_LORA, KV_IN, Q_OUT, KV_OUT, /* multi-head latent attention */
  EXTENTS
} extent;

typedef struct model_part {
  part_place place;
  const char *name;
  reshard_dtype dtype; /* RESHARD_F8_E4M3: followed by its scales, one f32 per block of 128 x 128 */
  extent rows, columns;
} model_part;

/* Numbers of config.json. */
typedef struct config {
  const char *name;
  const model_part *parts; /* ends with a NULL name */
  int64_t vocab, hidden, layers, heads, kv_heads, head;
  int64_t dense_layers, mlp;                /* the first layers are dense, with this intermediate size */
  int64_t experts, expert_mlp, shared;      /* the others have experts, and `shared` experts in one */
  int64_t q_lora, kv_lora, nope, rope, v;   /* ranks, and parts of a head */
  int64_t predict;                          /* layers that predict further tokens */
} config;

static const model_part llama[] = {
    {BEFORE, "model.embed_tokens.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {LAYER, "input_layernorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {LAYER, "self_attn.q_proj.weight", RESHARD_BF16, HEADS, HIDDEN},
    {LAYER, "self_attn.k_proj.weight", RESHARD_BF16, KV_HEADS, HIDDEN},
    {LAYER, "self_attn.v_proj.weight", RESHARD_BF16, KV_HEADS, HIDDEN},
    {LAYER, "self_attn.o_proj.weight", RESHARD_BF16, HIDDEN, HEADS},
    {LAYER, "post_attention_layernorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {DENSE, "mlp.gate_proj.weight", RESHARD_BF16, DENSE_MLP, HIDDEN},
    {DENSE, "mlp.up_proj.weight", RESHARD_BF16, DENSE_MLP, HIDDEN},
    {DENSE, "mlp.down_proj.weight", RESHARD_BF16, HIDDEN, DENSE_MLP},
    {AFTER, "model.norm.weight", RESHARD_BF16, HIDDEN, ONE},
    {AFTER, "lm_head.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {0},
};

static const model_part qwen3_moe[] = {
    {BEFORE, "model.embed_tokens.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {LAYER, "input_layernorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {LAYER, "self_attn.q_proj.weight", RESHARD_BF16, HEADS, HIDDEN},
    {LAYER, "self_attn.k_proj.weight", RESHARD_BF16, KV_HEADS, HIDDEN},
    {LAYER, "self_attn.v_proj.weight", RESHARD_BF16, KV_HEADS, HIDDEN},
    {LAYER, "self_attn.q_norm.weight", RESHARD_BF16, HEAD, ONE},
    {LAYER, "self_attn.k_norm.weight", RESHARD_BF16, HEAD, ONE},
    {LAYER, "self_attn.o_proj.weight", RESHARD_BF16, HIDDEN, HEADS},
    {LAYER, "post_attention_layernorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {SPARSE, "mlp.gate.weight", RESHARD_BF16, EXPERTS, HIDDEN},
    {EXPERT, "gate_proj.weight", RESHARD_BF16, EXPERT_MLP, HIDDEN},
    {EXPERT, "up_proj.weight", RESHARD_BF16, EXPERT_MLP, HIDDEN},
    {EXPERT, "down_proj.weight", RESHARD_BF16, HIDDEN, EXPERT_MLP},
    {AFTER, "model.norm.weight", RESHARD_BF16, HIDDEN, ONE},
    {AFTER, "lm_head.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {0},
};

static const model_part deepseek_v3[] = {
    {BEFORE, "model.embed_tokens.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {PREDICT_IN, "embed_tokens.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {PREDICT_IN, "enorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {PREDICT_IN, "hnorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {PREDICT_IN, "eh_proj.weight", RESHARD_BF16, HIDDEN, HIDDEN2},
    {LAYER, "input_layernorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {LAYER, "self_attn.q_a_proj.weight", RESHARD_F8_E4M3, Q_LORA, HIDDEN},
    {LAYER, "self_attn.q_a_layernorm.weight", RESHARD_BF16, Q_LORA, ONE},
    {LAYER, "self_attn.q_b_proj.weight", RESHARD_F8_E4M3, Q_OUT, Q_LORA},
    {LAYER, "self_attn.kv_a_proj_with_mqa.weight", RESHARD_F8_E4M3, KV_IN, HIDDEN},
    {LAYER, "self_attn.kv_a_layernorm.weight", RESHARD_BF16, KV_LORA, ONE},
    {LAYER, "self_attn.kv_b_proj.weight", RESHARD_F8_E4M3, KV_OUT, KV_LORA},
    {LAYER, "self_attn.o_proj.weight", RESHARD_F8_E4M3, HIDDEN, HEADS},
    {LAYER, "post_attention_layernorm.weight", RESHARD_BF16, HIDDEN, ONE},
    {DENSE, "mlp.gate_proj.weight", RESHARD_F8_E4M3, DENSE_MLP, HIDDEN},
    {DENSE, "mlp.up_proj.weight", RESHARD_F8_E4M3, DENSE_MLP, HIDDEN},
    {DENSE, "mlp.down_proj.weight", RESHARD_F8_E4M3, HIDDEN, DENSE_MLP},
    {SPARSE, "mlp.gate.weight", RESHARD_BF16, EXPERTS, HIDDEN},
    {SPARSE, "mlp.gate.e_score_correction_bias", RESHARD_F32, EXPERTS, ONE},
    {SPARSE, "mlp.shared_experts.gate_proj.weight", RESHARD_F8_E4M3, SHARED_MLP, HIDDEN},
    {SPARSE, "mlp.shared_experts.up_proj.weight", RESHARD_F8_E4M3, SHARED_MLP, HIDDEN},
    {SPARSE, "mlp.shared_experts.down_proj.weight", RESHARD_F8_E4M3, HIDDEN, SHARED_MLP},
    {EXPERT, "gate_proj.weight", RESHARD_F8_E4M3, EXPERT_MLP, HIDDEN},
    {EXPERT, "up_proj.weight", RESHARD_F8_E4M3, EXPERT_MLP, HIDDEN},
    {EXPERT, "down_proj.weight", RESHARD_F8_E4M3, HIDDEN, EXPERT_MLP},
    {PREDICT_OUT, "shared_head.norm.weight", RESHARD_BF16, HIDDEN, ONE},
    {PREDICT_OUT, "shared_head.head.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {AFTER, "model.norm.weight", RESHARD_BF16, HIDDEN, ONE},
    {AFTER, "lm_head.weight", RESHARD_BF16, VOCAB, HIDDEN},
    {0},
};

/* None of them ties lm_head to the embedding. */
static const config presets[] = {
    {.name = "llama-3.1-8b", .parts = llama, .vocab = 128256, .hidden = 4096, .layers = 32, .heads = 32,
     .kv_heads = 8, .head = 128, .dense_layers = 32, .mlp = 14336},
    {.name = "llama-3.1-70b", .parts = llama, .vocab = 128256, .hidden = 8192, .layers = 80, .heads = 64,
     .kv_heads = 8, .head = 128, .dense_layers = 80, .mlp = 28672},
    {.name = "qwen3-30b-a3b", .parts = qwen3_moe, .vocab = 151936, .hidden = 2048, .layers = 48, .heads = 32,
     .kv_heads = 4, .head = 128, .experts = 128, .expert_mlp = 768},
    {.name = "qwen3-235b-a22b", .parts = qwen3_moe, .vocab = 151936, .hidden = 4096, .layers = 94, .heads = 64,
     .kv_heads = 4, .head = 128, .experts = 128, .expert_mlp = 1536},
    {.name = "deepseek-v3", .parts = deepseek_v3, .vocab = 129280, .hidden = 7168, .layers = 61, .heads = 128,
     .kv_heads = 128, .head = 128, .dense_layers = 3, .mlp = 18432, .experts = 256, .expert_mlp = 2048, .shared = 1,
     .q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .v = 128, .predict = 1},
};
/* clang-format on */
#define PRESETS ((int64_t)(sizeof presets / sizeof *presets))

static void extents_of(const config *c, int64_t extents[EXTENTS]) {
  extents[ONE] = 1;
  extents[VOCAB] = c->vocab;
  extents[HIDDEN] = c->hidden;
  extents[HIDDEN2] = 2 * c->hidden;
  extents[HEADS] = c->heads * (c->v > 0 ? c->v : c->head);
  extents[KV_HEADS] = c->kv_heads * c->head;
  extents[HEAD] = c->head;
  extents[DENSE_MLP] = c->mlp;
  extents[EXPERT_MLP] = c->expert_mlp;
  extents[SHARED_MLP] = c->shared * c->expert_mlp;
  extents[EXPERTS] = c->experts;
  extents[Q_LORA] = c->q_lora;
  extents[KV_LORA] = c->kv_lora;
  extents[KV_IN] = c->kv_lora + c->rope;
  extents[Q_OUT] = c->heads * (c->nope + c->rope);
  extents[KV_OUT] = c->heads * (c->nope + c->v);
}

/* All parts of one place, each named prefix + name. The prefix is printed once and the names are copied behind it,
 * because printing 91,991 names in full would take most of the time. */
static reshard_status add_tensor(reshard_model model, const config *c, const int64_t *extents, part_place place,
                                 const char *prefix) {
  char name[160];
  size_t start = strlen(prefix);
  memcpy(name, prefix, start);
  for (const model_part *p = c->parts; p->name != NULL; p++) {
    if (p->place != place)
      continue;
    size_t length = start + strlen(p->name);
    memcpy(name + start, p->name, length - start + 1);
    int64_t shape[2] = {extents[p->rows], extents[p->columns]};
    RS_TRY(rs_model_add(model, c->name, name, length, p->dtype, p->columns == ONE ? 1 : 2, shape));
    if (p->dtype == RESHARD_F8_E4M3) {
      static const char scale[] = "_scale_inv";
      memcpy(name + length, scale, sizeof scale);
      int64_t blocks[2] = {rs_ceil_div(shape[0], 128), rs_ceil_div(shape[1], 128)};
      RS_TRY(rs_model_add(model, c->name, name, length + sizeof scale - 1, RESHARD_F32, 2, blocks));
    }
  }
  return RESHARD_SUCCESS;
}

static reshard_status add_layer(reshard_model model, const config *c, const int64_t *extents, int64_t layer) {
  char prefix[80];
  bool predicts = layer >= c->layers;
  snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
  if (predicts)
    RS_TRY(add_tensor(model, c, extents, PREDICT_IN, prefix));
  RS_TRY(add_tensor(model, c, extents, LAYER, prefix));
  RS_TRY(add_tensor(model, c, extents, layer < c->dense_layers ? DENSE : SPARSE, prefix));
  for (int64_t e = 0; layer >= c->dense_layers && e < c->experts; e++) {
    snprintf(prefix, sizeof prefix, "model.layers.%lld.mlp.experts.%lld.", (long long)layer, (long long)e);
    RS_TRY(add_tensor(model, c, extents, EXPERT, prefix));
  }
  snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
  return predicts ? add_tensor(model, c, extents, PREDICT_OUT, prefix) : RESHARD_SUCCESS;
}

static reshard_status add_config_tensors(reshard_model model, const config *c) {
  int64_t extents[EXTENTS];
  extents_of(c, extents);
  RS_TRY(add_tensor(model, c, extents, BEFORE, ""));
  for (int64_t layer = 0; layer < c->layers + c->predict; layer++)
    RS_TRY(add_layer(model, c, extents, layer));
  return add_tensor(model, c, extents, AFTER, "");
}

const char *reshard_model_preset_name(int64_t i) { return i >= 0 && i < PRESETS ? presets[i].name : NULL; }

reshard_status rs_preset_error(const char *what, const char *name) {
  char quoted[RS_QUOTE], names[256];
  rs_text list = {.at = names, .size = sizeof names};
  for (int64_t i = 0; i < PRESETS; i++)
    rs_text_add(&list, "%s %s", i > 0 ? "," : "", presets[i].name);
  return rs_error(RESHARD_ERROR_INVALID, "%s '%s'; the presets are%s", what, rs_quote(quoted, sizeof quoted, name),
                  names);
}

reshard_status reshard_model_preset(const char *name, reshard_model *model) {
  RS_TRY(RS_GIVEN("reshard_model_preset", name, model));
  for (int64_t i = 0; i < PRESETS; i++) {
    if (strcmp(name, presets[i].name) != 0)
      continue;
    reshard_model made;
    RS_TRY(rs_model_new(&made));
    RS_TRY_OR(add_config_tensors(made, &presets[i]), reshard_model_free(made));
    *model = made;
    return RESHARD_SUCCESS;
  }
  return rs_preset_error("no model preset", name);
}
