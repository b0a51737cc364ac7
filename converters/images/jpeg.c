/* Decodes a region of a JPEG, and checks a JPEG, by the libjpeg-turbo that is found when the
 * program runs.
 *
 * Of the rows above and below a region only the entropy code is decoded (`jpeg_skip_scanlines`),
 * and of the columns beside it too
 * (`jpeg_crop_scanline`): neither transformed, nor upsampled, nor converted. The pixels are those
 * of the whole image: chroma at an edge is interpolated with its neighbours, so a region is decoded
 * with a margin that is then cut off.
 *
 * The Huffman codes of usual images are decoded by huffman.c, and those of all others by libjpeg:
 * also of each image that is not as an encoder writes it, from its start on, so that what is a
 * warning and what is an error is decided by libjpeg alone.
 *
 * The entropy code is read to its end whatever the region, because what follows it shows that bytes
 * were lost or changed before: a JPEG has no checksum. All is done without the interpreter's lock.
 */

#define _GNU_SOURCE /* dladdr */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "huffman.h"
#include "jpeg_abi.h"

#define CHANNELS 3
#define MARGIN                                                                                     \
    2 /* pixels of the output around a region, of which the outermost is interpolated with too few \
         neighbours */
#define ROWS 16 /* that are read at once */
#define MAX_SAMPLING 2
#define MAX_SIDE 65535
#define MAX_PIXELS 80000000 /* above it Pillow decides whether an image is a decompression bomb */

/* --------------------------------------------------------------------------------- the library */

struct functions {
    struct errors *(*std_error)(struct errors *);
    void (*create)(struct decoder *, int version, size_t size);
    void (*destroy)(struct decoder *);
    void (*memory_source)(struct decoder *, const unsigned char *, unsigned long);
    int (*read_header)(struct decoder *, int require_image);
    int (*start)(struct decoder *);
    int (*finish)(struct decoder *);
    void (*crop)(struct decoder *, uint32_t *left, uint32_t *width);
    uint32_t (*skip)(struct decoder *, uint32_t rows);
    uint32_t (*read)(struct decoder *, uint8_t **rows, uint32_t most);
    int (*has_scans)(struct decoder *);
};

static struct functions library;

#define FUNCTION(name, member) {name, offsetof(struct functions, member)}
static const struct {
    const char *name;
    size_t place;
} FUNCTIONS[] = {
    FUNCTION("jpeg_std_error", std_error),          FUNCTION("jpeg_CreateDecompress", create),
    FUNCTION("jpeg_destroy_decompress", destroy),   FUNCTION("jpeg_mem_src", memory_source),
    FUNCTION("jpeg_read_header", read_header),      FUNCTION("jpeg_start_decompress", start),
    FUNCTION("jpeg_finish_decompress", finish),     FUNCTION("jpeg_crop_scanline", crop),
    FUNCTION("jpeg_skip_scanlines", skip),          FUNCTION("jpeg_read_scanlines", read),
    FUNCTION("jpeg_has_multiple_scans", has_scans),
};

static int is_loaded;

/* ----------------------------------------------------------------------------------- one image */

struct image {
    struct decoder decoder; /* first, so that a pointer to it is one to the image */
    struct errors errors;
    jmp_buf failed;
    int stops_at_warning;
    long num_warnings; /* about the pixels */
    int code;          /* of the first of them, or of the error; 0: none */
    char text[MESSAGE_BYTES];
    uint8_t *line;
    struct scan *scan; /* null: libjpeg decodes the codes */
};

static void keep_message(struct image *image)
{
    if (!image->code) {
        image->code = image->errors.code;
        image->errors.format(&image->decoder, image->text);
    }
}

static void on_error(struct decoder *decoder)
{
    struct image *image = (struct image *)decoder;
    keep_message(image);
    longjmp(image->failed, 1);
}

static void on_message(struct decoder *decoder, int level)
{
    struct image *image = (struct image *)decoder;
    int code = image->errors.code;
    if (level >= 0 || code == WARNS_ADOBE_TRANSFORM || code == WARNS_JFIF_VERSION ||
        code == WARNS_COLOUR_PROFILE)
        return;
    image->num_warnings++;
    keep_message(image);
    if (image->stops_at_warning)
        longjmp(image->failed, 1);
}

static void on_unusual(struct decoder *decoder)
{
    longjmp(((struct image *)decoder)->failed, 1);
}

static void no_output(struct decoder *decoder)
{
    (void)decoder;
}

/* To be called under `setjmp(image->failed)`. */
static void open_image(struct image *image, const Py_buffer *data)
{
    library.create(&image->decoder, ABI_VERSION, DECOMPRESS_BYTES);
    library.memory_source(&image->decoder, data->buf, (unsigned long)data->len);
    library.read_header(&image->decoder, 1);
}

static void prepare(struct image *image)
{
    memset(image, 0, sizeof *image);
    image->decoder.errors = library.std_error(&image->errors);
    image->errors.exit = on_error;
    image->errors.emit = on_message;
    image->errors.output = no_output;
}

static void close_image(struct image *image)
{
    library.destroy(&image->decoder);
    free(image->line);
    scan_end(image->scan);
}

static int is_small(const struct decoder *decoder)
{
    return (uint64_t)decoder->width * decoder->height <= MAX_PIXELS;
}

/* Whether the colours mean the same to every reader, and are a byte each. */
static int is_plain(const struct decoder *decoder)
{
    int colours = decoder->colours;
    return decoder->precision == 8 && (colours == GRAY || colours == RGB || colours == YCC) &&
           decoder->num_components == (colours == GRAY ? 1 : 3) && is_small(decoder);
}

struct region {
    uint32_t left, top, right, bottom; /* of the output, which may be smaller than the image */
};

static void scale_down(struct region *region, const int box[4], int denominator)
{
    region->left = (uint32_t)(box[0] / denominator);
    region->top = (uint32_t)(box[1] / denominator);
    region->right = (uint32_t)((box[2] + denominator - 1) / denominator);
    region->bottom = (uint32_t)((box[3] + denominator - 1) / denominator);
}

static uint32_t less_margin(uint32_t place)
{
    return place > MARGIN ? place - MARGIN : 0;
}

/* Whether the two functions that come first in libjpeg's decoder of codes are its own: that is
 * known of all versions, but promised of none. */
static int is_known(const struct decoder *decoder)
{
    static _Atomic(void *) known;
    Dl_info here, start, decode;
    void *function = (void *)decoder->entropy->decode_mcu;
    if (function && function == known)
        return 1;
    if (!dladdr((void *)library.start, &here) ||
        !dladdr((void *)decoder->entropy->start_pass, &start) || !dladdr(function, &decode))
        return 0;
    if (start.dli_fbase != here.dli_fbase || decode.dli_fbase != here.dli_fbase)
        return 0;
    known = function;
    return 1;
}

/* From now on the codes are decoded by huffman.c, if the image is usual; of columns `left` to `left
 * + width` alone. */
static void decode_codes(struct image *image, uint32_t left, uint32_t width)
{
    struct decoder *decoder = &image->decoder;
    uint32_t across = (uint32_t)decoder->least_dct_size *
                      (uint32_t)(decoder->num_components > 1 ? decoder->max_across : 1);
    if (library.has_scans(decoder) || !is_known(decoder) || !across)
        return;
    image->scan = scan_begin(decoder, on_unusual);
    if (image->scan)
        scan_wants(image->scan, left / across, (left + width + across - 1) / across);
}

/* Reads rows up to `end`, and copies columns `left` and on to `out`, unless that is null. To be
 * called under `setjmp`. */
static void read_rows(struct image *image, uint32_t end, uint8_t *out, uint32_t left,
                      size_t out_stride)
{
    struct decoder *decoder = &image->decoder;
    size_t stride = (size_t)decoder->out_width * decoder->out_components;
    uint8_t *rows[ROWS];
    for (int row = 0; row < ROWS; row++)
        rows[row] = image->line + row * stride;
    while (decoder->row < end) {
        uint32_t left_over = end - decoder->row;
        uint32_t count = library.read(decoder, rows, left_over < ROWS ? left_over : ROWS);
        for (uint32_t row = 0; out && row < count; row++, out += out_stride)
            memcpy(out, rows[row] + (size_t)left * CHANNELS, out_stride);
    }
}

/* What follows the region is decoded as far as to know that it is there. To be called under
 * `setjmp`. */
static void read_to_end(struct image *image)
{
    struct decoder *decoder = &image->decoder;
    /* Skipping beyond the last row would end the decoder without a look at the data. */
    if (decoder->row + 1 < decoder->out_height && !library.has_scans(decoder))
        library.skip(decoder, decoder->out_height - 1 - decoder->row);
    if (decoder->row < decoder->out_height && !library.has_scans(decoder))
        read_rows(image, decoder->out_height, NULL, 0, 0);
    else if (decoder->row < decoder->out_height)
        library.skip(decoder, decoder->out_height -
                                  decoder->row); /* all scans were read before the first row */
    library.finish(decoder);
}

enum { DONE, FAILED, UNUSUAL, NO_MEMORY };

static int read_size(struct image *image, const Py_buffer *data)
{
    if (setjmp(image->failed))
        return FAILED;
    open_image(image, data);
    return is_plain(&image->decoder) ? DONE : UNUSUAL;
}

static int decode_region(struct image *image, const Py_buffer *data, const int box[4],
                         int denominator, int to_end, int by_library, uint8_t *out)
{
    struct decoder *decoder = &image->decoder;
    struct region region;
    scale_down(&region, box, denominator);
    if (setjmp(image->failed))
        return FAILED;
    open_image(image, data);
    if (!is_plain(decoder) || (uint32_t)box[2] > decoder->width ||
        (uint32_t)box[3] > decoder->height)
        return UNUSUAL;
    decoder->out_colours = RGB;
    decoder->scale = 1;
    decoder->scale_denominator = (unsigned)denominator;
    library.start(decoder);
    if (region.right > decoder->out_width || region.bottom > decoder->out_height)
        return UNUSUAL;
    uint32_t left = less_margin(region.left), width = region.right + MARGIN - left,
             rows_above = less_margin(region.top);
    int can_cut = decoder->max_across <= MAX_SAMPLING && decoder->max_down <= MAX_SAMPLING;
    if (left + width > decoder->out_width)
        width = decoder->out_width - left;
    if (can_cut && width < decoder->out_width)
        library.crop(decoder, &left, &width); /* moves to the left, up to the next block */
    else
        left = 0;
    image->line = malloc((size_t)decoder->out_width * CHANNELS * ROWS);
    if (!image->line)
        return NO_MEMORY;
    if (!by_library)
        decode_codes(image, left, decoder->out_width);
    if (can_cut && rows_above)
        library.skip(decoder, rows_above);
    read_rows(image, region.top, NULL, 0, 0);
    read_rows(image, region.bottom, out, region.left - left,
              (size_t)(region.right - region.left) * CHANNELS);
    if (to_end)
        read_to_end(image);
    return DONE;
}

static int check_image(struct image *image, const Py_buffer *data, int by_library)
{
    struct decoder *decoder = &image->decoder;
    if (setjmp(image->failed))
        return FAILED;
    open_image(image, data);
    if (!is_small(decoder))
        return UNUSUAL;
    decoder->out_colours = decoder->colours; /* none is converted */
    decoder->scale = 1;
    decoder->scale_denominator = 8; /* nor much transformed */
    library.start(decoder);
    image->line = malloc((size_t)decoder->out_width * decoder->out_components * ROWS);
    if (!image->line)
        return NO_MEMORY;
    if (!by_library)
        decode_codes(image, 0, 0);
    read_to_end(image);
    return DONE;
}

/* -------------------------------------------------------------------------------------- Python */

static PyObject *load(PyObject *module, PyObject *args)
{
    const char *path;
    struct functions found;

    (void)module;
    if (!PyArg_ParseTuple(args, "s:load", &path))
        return NULL;
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* for good: a decoder may be in use */
    if (!opened) {
        PyErr_SetString(PyExc_OSError, dlerror());
        return NULL;
    }
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *function = dlsym(opened, FUNCTIONS[i].name);
        if (!function) {
            PyErr_Format(PyExc_OSError, "%s: has no %s", path, FUNCTIONS[i].name);
            return NULL;
        }
        memcpy((char *)&found + FUNCTIONS[i].place, &function, sizeof function);
    }
    struct functions before = library;
    library = found;
    struct image image;
    prepare(&image);
    int failed = setjmp(image.failed);
    if (!failed)
        library.create(&image.decoder, ABI_VERSION,
                       DECOMPRESS_BYTES); /* an error where version or size are others */
    if (failed) {
        PyErr_Format(PyExc_OSError, "%s: %s", path, image.text);
        library = before;
        return NULL;
    }
    close_image(&image);
    is_loaded = 1;
    Py_RETURN_NONE;
}

static int check_loaded(void)
{
    if (!is_loaded)
        PyErr_SetString(PyExc_RuntimeError, "no library is loaded");
    return is_loaded;
}

static PyObject *size(PyObject *module, PyObject *args)
{
    Py_buffer data;
    struct image image;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*:size", &data))
        return NULL;
    PyObject *result = NULL;
    if (check_loaded()) {
        prepare(&image);
        if (read_size(&image, &data) == DONE) {
            result = Py_BuildValue("(II)", image.decoder.width, image.decoder.height);
        } else {
            Py_INCREF(Py_None);
            result = Py_None;
        }
        close_image(&image);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *decode(PyObject *module, PyObject *args)
{
    Py_buffer data;
    int box[4], denominator, to_end, by_library = 0, found = UNUSUAL;
    struct image image;
    PyObject *out = NULL;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*(iiii)ip|p:decode", &data, &box[0], &box[1], &box[2], &box[3],
                          &denominator, &to_end, &by_library))
        return NULL;
    if (!check_loaded())
        goto end;
    int is_box = 0 <= box[0] && box[0] < box[2] && box[2] <= MAX_SIDE && 0 <= box[1] &&
                 box[1] < box[3] && box[3] <= MAX_SIDE;
    if (!is_box || (denominator != 1 && denominator != 2 && denominator != 4 && denominator != 8)) {
        PyErr_SetString(PyExc_ValueError, "not a box, or not 1, 2, 4 or 8");
        goto end;
    }
    struct region region;
    scale_down(&region, box, denominator);
    uint64_t pixels = (uint64_t)(region.right - region.left) * (region.bottom - region.top);
    if (pixels > MAX_PIXELS) {
        PyErr_SetString(PyExc_ValueError, "too many pixels");
        goto end;
    }
    out = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(pixels * CHANNELS));
    if (!out)
        goto end;
    uint8_t *bytes = (uint8_t *)PyByteArray_AsString(out);
    Py_BEGIN_ALLOW_THREADS for (int done = 0; !done;)
    {
        prepare(&image);
        image.stops_at_warning = 1;
        found = decode_region(&image, &data, box, denominator, to_end, by_library, bytes);
        done = found != FAILED || !image.scan;
        by_library = 1;
        close_image(&image);
    }
    Py_END_ALLOW_THREADS if (found != DONE) Py_CLEAR(out);
    if (found == NO_MEMORY)
        PyErr_NoMemory();
    else if (found == FAILED)
        out = Py_BuildValue("(lis)", image.num_warnings, image.code, image.text);
    else if (found == UNUSUAL)
        PyErr_SetString(PyExc_ValueError, "not an image that size() knows, or not a box within it");
end:
    PyBuffer_Release(&data);
    return out;
}

static PyObject *check(PyObject *module, PyObject *args)
{
    Py_buffer data;
    struct image image;
    int found, by_library = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*|p:check", &data, &by_library))
        return NULL;
    if (!check_loaded()) {
        PyBuffer_Release(&data);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS for (int done = 0; !done;)
    {
        prepare(&image);
        image.stops_at_warning =
            1; /* a scan that repeats coefficients gives one: so scans are limited */
        found = check_image(&image, &data, by_library);
        done = (found != FAILED && !image.num_warnings) || !image.scan;
        by_library = 1;
        close_image(&image);
    }
    Py_END_ALLOW_THREADS PyBuffer_Release(&data);
    if (found == NO_MEMORY)
        return PyErr_NoMemory();
    return Py_BuildValue("(lis)", image.num_warnings, image.code, image.text);
}

static PyMethodDef methods[] = {
    {"load", load, METH_VARARGS,
     "load(path): use this libjpeg.so.62 from now on; OSError if it is none, or lacks something."},
    {"size", size, METH_VARARGS,
     "size(jpeg) -> (width, height), or None for what is no JPEG in grey, YCbCr or RGB of 8 bits."},
    {"decode", decode, METH_VARARGS,
     "decode(jpeg, (left, top, right, bottom), denominator, to_end, by_library=False) -> RGB bytes "
     "of the region, at a size of\n"
     "1 / denominator; or (warnings, code, text) where the library warned (then warnings is 1) or "
     "failed (0). With `by_library` it\n"
     "decodes the codes too; the result is the same."},
    {"check", check, METH_VARARGS,
     "check(jpeg, by_library=False) -> (0 or 1, code, text): a warning about the pixels, at which "
     "it stops; an error has a code, too."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "ioprof._jpeg", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__jpeg(void)
{
    return PyModule_Create(&definition);
}
