/* Box copies that convert on a GPU, beside a memcpy that reads and writes as many bytes together.
 *
 * - gpu_convert_rows: from [m][4][2048] numbers to [4][m][2048], as rows to columns are for 4 ranks.
 * - gpu_convert_transpose: from [n][n] to its transpose.
 * - gpu_convert_blocks: [n][n] to f8_e4m3 with an f32 scale for each 128 x 128 numbers, or back. Scales lie behind the
 *   values. */
#include "bench/micro/gpu.h"

#include <math.h>

typedef struct convert_shape {
  reshard_dtype from, to;
  int64_t rows, parts, row; /* [rows][parts][row] to [parts][rows][row] */
} convert_shape;

static rs_program *compile_cast(rs_device *device, const char *from, char *to, const void *shape) {
  const convert_shape *p = shape;
  const int64_t in = (int64_t)reshard_dtype_size(p->from), out = (int64_t)reshard_dtype_size(p->to);
  const rs_axis axes[3] = {{p->parts, p->row * in, p->rows * p->row * out},
                           {p->rows, p->parts * p->row * in, p->row * out},
                           {p->row, in, out}};
  rs_copies copies = {0};
  CLI_TRY("", rs_copies_convert(&copies, from, to, p->from, p->to, 3, axes));
  return gpu_compile_copies(device, &copies);
}

static rs_program *compile_blocks(rs_device *device, const char *from, char *to, const void *shape) {
  const convert_shape *p = shape;
  const bool back = p->from == RESHARD_F8_E4M3;
  const int64_t n = p->rows, width = (int64_t)reshard_dtype_size(back ? p->to : p->from);
  char *source = (char *)(uintptr_t)from, *values = back ? source : to;
  const rs_block_box box = {.wide = back ? to : source,
                            .values = values,
                            .scales = values + n * n,
                            .wide_dtype = back ? p->to : p->from,
                            .scale_dtype = RESHARD_F32,
                            .n = {n, n},
                            .block = {128, 128},
                            .wide_stride = {n * width, width},
                            .value_stride = {n, 1},
                            .scale_stride = {n / 128 * 4, 4}};
  rs_copies copies = {0};
  CLI_TRY("", rs_copies_scale(&copies, &box, back, 0, &(rs_block_axis){1, 0, 0, 0}));
  return gpu_compile_copies(device, &copies);
}

/* parts == 1: a square, of whole blocks; else rows. */
static int measure_conversion(gpu_row *x, gpu_compile *compile, reshard_dtype from, reshard_dtype to, int64_t parts) {
  const int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
  const int64_t numbers = x->most / (in + out) * 2, side = (int64_t)sqrt((double)numbers) & -128;
  convert_shape p = {from, to, side, side, 1};
  if (parts > 1)
    p = (convert_shape){from, to, rs_max(numbers / (parts * 2048), 1), parts, 2048};
  const int64_t n = p.rows * p.parts * p.row, scales = compile == compile_blocks ? n / (128 * 128) * 4 : 0;
  const int64_t read = n * in + (in == 1 ? scales : 0), written = n * out + (out == 1 ? scales : 0);
  const int64_t bytes = (read + written) / 2;
  gpu_buffers s = gpu_buffers_create(&x->context, rs_max(read, bytes), rs_max(written, bytes));
  if (scales > 0) /* of random bits each block would have an infinity */
    gpu_buffers_make_numbers(&x->context, &s);
  return gpu_row_measure_program(x, compile, &p, s, bytes);
}

static int rows_f32_bf16(void *row) { return measure_conversion(row, compile_cast, RESHARD_F32, RESHARD_BF16, 4); }
static int rows_bf16_f32(void *row) { return measure_conversion(row, compile_cast, RESHARD_BF16, RESHARD_F32, 4); }
static int rows_f32_f8(void *row) { return measure_conversion(row, compile_cast, RESHARD_F32, RESHARD_F8_E4M3, 4); }
static int transpose_f32_bf16(void *row) { return measure_conversion(row, compile_cast, RESHARD_F32, RESHARD_BF16, 1); }
static int blocks_f32_f8(void *row) { return measure_conversion(row, compile_blocks, RESHARD_F32, RESHARD_F8_E4M3, 1); }
static int blocks_bf16_f8(void *row) {
  return measure_conversion(row, compile_blocks, RESHARD_BF16, RESHARD_F8_E4M3, 1);
}
static int blocks_f8_bf16(void *row) {
  return measure_conversion(row, compile_blocks, RESHARD_F8_E4M3, RESHARD_BF16, 1);
}

static const micro_case micro_gpu_convert[] = {
    GPU_ROW("gpu_convert_rows_f32_bf16", 0, rows_f32_bf16),
    GPU_ROW("gpu_convert_rows_bf16_f32", 0, rows_bf16_f32),
    GPU_ROW("gpu_convert_rows_f32_f8", 0, rows_f32_f8),
    GPU_ROW("gpu_convert_transpose_f32_bf16", 0, transpose_f32_bf16),
    GPU_ROW("gpu_convert_blocks_f32_f8", 0, blocks_f32_f8),
    GPU_ROW("gpu_convert_blocks_bf16_f8", 0, blocks_bf16_f8),
    GPU_ROW("gpu_convert_blocks_f8_bf16", 0, blocks_f8_bf16),
};
GPU_TABLE(micro_gpu_convert)
