/* Decodes the Huffman codes of a baseline JPEG in place of libjpeg's own decoder. */

#ifndef IOPROF_HUFFMAN_H
#define IOPROF_HUFFMAN_H

#include "jpeg_abi.h"

struct scan;

/* Has the codes of the image decoded here from its first one on. Null where the image is not usual,
 * and without memory: libjpeg decodes it. To be called after `jpeg_start_decompress`;
 * `decoder->client` is the scan's from then on. Where the data is not what an encoder writes,
 * `give_up` is called, which must not return: libjpeg itself has to decode the image then, from its
 * start. */
struct scan *scan_begin(struct decoder *decoder, void (*give_up)(struct decoder *));

/* Of each row only MCUs `first` to `end` are wanted: the coefficients of others stay zero. */
void scan_wants(struct scan *scan, uint32_t first, uint32_t end);

/* Also of null. */
void scan_end(struct scan *scan);

#endif
