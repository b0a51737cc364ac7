/* The part of libjpeg's binary interface, version 6.2 on 64-bit machines, that jpeg.c uses.
 *
 * That is the interface of every libjpeg.so.62, libjpeg-turbo's among them, and of the copy in
 * Pillow's wheels. Its structures have not changed since 1998, and `jpeg_CreateDecompress` itself
 * refuses a caller with another version or another size of the structure. It is written down here
 * because the library is found when the program runs: a wheel is built on a machine that has none,
 * and a machine that has the library rarely has its headers. tests/test_jpeg.py compares these
 * places with those of <jpeglib.h>.
 */

#ifndef IOPROF_JPEG_ABI_H
#define IOPROF_JPEG_ABI_H

#include <stddef.h>
#include <stdint.h>

#define ABI_VERSION 62
#define DECOMPRESS_BYTES 632
#define ERROR_BYTES 168
#define HEADER_OK 1
#define MESSAGE_BYTES 200 /* JMSG_LENGTH_MAX */

enum { GRAY = 1, RGB = 2, YCC = 3 }; /* J_COLOR_SPACE */

/* Warnings that say nothing of the pixels (jerror.h): an unknown Adobe transform, a newer JFIF, a
 * colour profile in disorder. */
enum { WARNS_ADOBE_TRANSFORM = 114, WARNS_JFIF_VERSION = 119, WARNS_COLOUR_PROFILE = 127 };

struct decoder;

struct errors {
    void (*exit)(struct decoder *);
    void (*emit)(struct decoder *, int level);
    void (*output)(struct decoder *);
    void (*format)(struct decoder *, char *text);
    void (*reset)(struct decoder *);
    int code;
    union {
        int numbers[8];
        char text[80];
    } parameters;
    int trace_level;
    long num_warnings;
    char rest[32];
};

struct source {
    const uint8_t *next;
    size_t left;
    void (*init)(struct decoder *);
    int (*fill)(struct decoder *);
    void (*skip)(struct decoder *, long);
    int (*resync)(struct decoder *, int);
    void (*term)(struct decoder *);
};

struct huffman {
    uint8_t bits[17]; /* number of codes of each length */
    uint8_t values[256];
    int is_sent;
};

struct component {
    int numbers[5];
    int dc_table, ac_table;
    uint32_t blocks_across, blocks_down;
    int dct_size;
};

/* Not of jpeglib.h but of jpegint.h, where these two have come first since 1994. */
struct entropy {
    void (*start_pass)(struct decoder *);
    int (*decode_mcu)(struct decoder *, int16_t (**blocks)[64]);
};

struct decoder {
    struct errors *errors;
    void *memory;
    void *progress;
    void *client;
    int is_decompressor;
    int state;
    struct source *source;
    uint32_t width, height;
    int num_components;
    int colours, out_colours;
    unsigned scale, scale_denominator;
    double gamma;
    int settings[12];
    uint32_t out_width, out_height;
    int out_colour_components, out_components, rows_at_once;
    int num_colours;
    void *colour_map;
    uint32_t row;
    char between[232 - 172];
    const struct huffman *dc_tables[4], *ac_tables[4];
    int precision;
    void *components;
    int is_progressive, is_arithmetic;
    char further[368 - 320];
    unsigned restart_interval;
    char markers[408 - 372];
    int max_across, max_down; /* sampling factors */
    int least_dct_size;
    uint32_t rows_of_mcus;
    void *range_limit;
    int scan_components;
    const struct component *scan_component[4];
    uint32_t mcus_per_row, mcu_rows;
    int blocks_in_mcu;
    int mcu_membership[10];
    int spectrum[4]; /* first and last coefficient, and two bit positions */
    int unread_marker;
    void *modules[6];
    struct entropy *entropy;
    void *last[4];
};

_Static_assert(sizeof(void *) == 8, "only 64-bit machines");
_Static_assert(sizeof(struct decoder) == DECOMPRESS_BYTES && sizeof(struct errors) == ERROR_BYTES,
               "sizes");
_Static_assert(offsetof(struct errors, num_warnings) == 128, "error manager");
_Static_assert(offsetof(struct decoder, width) == 48 && offsetof(struct decoder, gamma) == 80,
               "header");
_Static_assert(offsetof(struct decoder, out_width) == 136 && offsetof(struct decoder, row) == 168,
               "output");
_Static_assert(offsetof(struct decoder, precision) == 296 &&
                   offsetof(struct decoder, is_progressive) == 312,
               "frame");
_Static_assert(offsetof(struct decoder, restart_interval) == 368 &&
                   offsetof(struct decoder, unread_marker) == 540,
               "scan");
_Static_assert(offsetof(struct decoder, entropy) == 592 &&
                   offsetof(struct component, dct_size) == 36,
               "modules");
_Static_assert(offsetof(struct decoder, max_across) == 408 &&
                   offsetof(struct decoder, least_dct_size) == 416,
               "sampling");

#endif
