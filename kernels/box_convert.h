/* Launchers of box copies that convert numbers: any (converts), and those of aligned data (vectors). Plain C. */
#ifndef RS_KERNELS_BOX_CONVERT_H
#define RS_KERNELS_BOX_CONVERT_H

#include "kernels/box_copy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As those of box_copy.h. */
int rs_box_convert_load(void);
int rs_box_vectors_load(void);
int rs_box_convert_launch(const rs_box_batch *batch, uint32_t most, void *stream);
int rs_box_vectors_launch(const rs_box_batch *batch, uint32_t most, void *stream);

#ifdef __cplusplus
}
#endif
#endif
