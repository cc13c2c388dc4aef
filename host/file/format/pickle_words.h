/* How the values of a pickle lie in its words (pickle.c, pickle_values.c). */
#ifndef RS_FILE_PICKLE_WORDS_H
#define RS_FILE_PICKLE_WORDS_H

#include <stdint.h>

#define RS_PICKLE_NO_WORD UINT32_MAX
/* A first word: the byte, and what a dict is that a call has made, and a list of what was absorbed. */
#define RS_WORD_BYTE ((uint32_t)(1u << 30) - 1)
#define RS_WORD_DICT ((uint32_t)1 << 31)
#define RS_WORD_LIST ((uint32_t)1 << 30)

enum { RS_TUPLE_ITEMS = 1, RS_TUPLE_FIRST };
enum { RS_LIST_ITEMS = 1, RS_LIST_FIRST, RS_LIST_LAST, RS_WORD_MORE };
enum { RS_GLOBAL_NUMBER = 1, RS_GLOBAL_MODULE, RS_GLOBAL_NAME };
enum { RS_OBJECT_CLASS = 1, RS_OBJECT_ARGUMENTS, RS_OBJECT_STATE }; /* and RS_WORD_MORE */
enum { RS_PERSISTENT_ID = 1 };

/* n bytes, little-endian. */
static inline uint64_t rs_pickle_little(const char *at, int n) {
  uint64_t made = 0;
  for (int i = n - 1; i >= 0; i--)
    made = made << 8 | (unsigned char)at[i];
  return made;
}

#endif
