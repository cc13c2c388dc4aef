/* Jobs that the host makes and kernels read: plain structs, in C and in C++. */
#ifndef RS_DEVICE_PODS_H
#define RS_DEVICE_PODS_H

#include <reshard/status.h>

#include <stdint.h>

/* One loop of a box copy: n steps, byte strides on both sides (any sign, 0 allowed on the source side). */
typedef struct rs_axis {
  int64_t n, src, dst;
} rs_axis;

/* A conversion of numbers: `elements` of one dtype, contiguous on both sides, to as many of another, repeated over
 * naxes loops as in rs_copy; destinations do not overlap. Rounds to nearest even, once; subnormal numbers are kept.
 * Numbers that are too large become infinity, for f8_e4m3 the largest number (infinities do, too). Every NaN becomes
 * the one of which all bits but the sign are set. */
typedef struct rs_cast {
  const char *src;
  char *dst;
  int64_t elements;
  int64_t axes; /* index of the first axis in rs_casts.axes */
  int32_t naxes;
  int32_t from, to; /* reshard_dtype: rs_cast_supported */
} rs_cast;

/* dst[o][i][...] = src[o][index[i]][...]: `outer` loops (as in rs_copy) around the dim that is selected along, `inner`
 * loops and a run inside of it. index: count numbers of 4 or 8 bytes (signed), index_stride bytes apart. */
typedef struct rs_select {
  const char *src, *index;
  char *dst;
  int64_t count, extent;                        /* of index; of src's dim */
  int64_t index_stride, src_stride, dst_stride; /* bytes a step of index; of the dim in src and dst */
  int32_t index_bytes, element;                 /* 4 or 8; as in rs_copy */
  int64_t run;                                  /* contiguous bytes of src and dst at one index */
  int32_t naxes;                                /* loops other than the dim, outermost first: any order */
  rs_axis axes[RESHARD_MAX_DIMS];
} rs_select;
/* First index out of range by position that a checked select found, in memory of the device. */
typedef struct rs_select_fault {
  int64_t position, value; /* -1 and 0: none was found */
} rs_select_fault;

#endif
