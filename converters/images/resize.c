/* Resizes a region of an RGB image with Pillow's bicubic filter: the same bytes as
 * Image.resize(size, BICUBIC, box), but faster.
 *
 * Pillow (libImaging/Resample.c) uses integers: weights are rounded to 22 fractional bits, each of
 * the two passes sums in 32 bits and rounds to a byte. So the result is the same on every machine,
 * and the order of summation does not matter: here 64 sums are computed in parallel (SIMD). Rows
 * are always resized first, then columns; in Pillow the order depends on the version. Where this is
 * not built, Pillow resizes, in two passes (`transforms.py`).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22 /* fractional bits of a weight: PRECISION_BITS of Pillow */
#define CHANNELS 3
#define LANES 64 /* bytes that are summed in parallel, in registers */
#define ROWS (LANES / 4)
#define MAX_SIDE (1 << 27)
#define SUPPORT 2.0 /* half width of the bicubic filter, in pixels of the smaller image */

#if defined(__x86_64__) && defined(__GLIBC__) && (__GNUC__ >= 8)
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

/* For each output pixel of a row or column: the first input pixel, the number of input pixels, and
 * their weights. */
struct weights {
    int taps; /* size of `values` per output pixel */
    int *first;
    int *count;
    int32_t *values;
};

static double bicubic(double x)
{
    const double a = -0.5;
    if (x < 0.0)
        x = -x;
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static void weights_free(struct weights *w)
{
    free(w->first);
    free(w->count);
    free(w->values);
}

/* A side of the image: its length, and which part of it is there. */
struct side {
    int length, first, count;
};

/* Returns -1 without memory, and -2 where a pixel that has a weight is not there. */
static int weights_of(struct weights *w, struct side in, int start, int end, int out_size)
{
    double scale = (double)(end - start) / out_size;
    double filter_scale = scale < 1.0 ? 1.0 : scale;
    double support = SUPPORT * filter_scale;

    w->taps = (int)ceil(support) * 2 + 1;
    double *one = malloc(w->taps * sizeof *one);
    w->first = malloc(out_size * sizeof *w->first);
    w->count = malloc(out_size * sizeof *w->count);
    w->values = calloc((size_t)out_size * w->taps, sizeof *w->values);
    if (!one || !w->first || !w->count || !w->values) {
        free(one);
        return -1;
    }
    for (int place = 0; place < out_size; place++) {
        double centre = start + (place + 0.5) * scale, sum = 0.0;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        low = low < 0 ? 0 : low;
        high = high > in.length ? in.length : high;
        if (low < in.first || high > in.first + in.count) {
            free(one);
            return -2;
        }
        w->first[place] = low - in.first;
        w->count[place] = high - low;
        for (int i = 0; i < high - low; i++) {
            one[i] = bicubic((i + low - centre + 0.5) * (1.0 / filter_scale));
            sum += one[i];
        }
        for (int i = 0; i < high - low; i++) {
            double share = sum != 0.0 ? one[i] / sum : one[i];
            w->values[(size_t)place * w->taps + i] =
                (int32_t)((share < 0 ? -0.5 : 0.5) + share * (1 << BITS));
        }
    }
    free(one);
    return 0;
}

static inline uint8_t byte_of(int32_t sum)
{
    sum >>= BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : sum;
}

/* `LANES` weighted sums in parallel; the inputs of one sum are `stride` bytes apart. */
static inline __attribute__((always_inline)) void
sum(uint8_t *out, const uint8_t *in, size_t stride, const int32_t *values, int count)
{
    int32_t sums[LANES];
    for (int i = 0; i < LANES; i++)
        sums[i] = 1 << (BITS - 1);
    for (int tap = 0; tap < count; tap++)
        for (int i = 0; i < LANES; i++)
            sums[i] += in[tap * stride + i] * values[tap];
    for (int i = 0; i < LANES; i++)
        out[i] = byte_of(sums[i]);
}

/* Resizes `ROWS` rows at once: they are transposed, so that bytes with the same weight are
 * adjacent. A pixel is copied as four bytes, of which the last is overwritten by the next pixel, or
 * is padding. */
FAST static void across(uint8_t *out, size_t out_stride, const uint8_t *const rows[ROWS],
                        uint8_t *turned, const struct weights *w, int out_width)
{
    int start = w->first[0], end = w->first[out_width - 1] + w->count[out_width - 1];
    for (int row = 0; row < ROWS; row++)
        for (int x = start; x < end; x++)
            memcpy(turned + (size_t)(x - start) * LANES + row * 4, rows[row] + (size_t)x * CHANNELS,
                   4);
    for (int x = 0; x < out_width; x++) {
        uint8_t pixels[LANES];
        sum(pixels, turned + (size_t)(w->first[x] - start) * LANES, LANES,
            w->values + (size_t)x * w->taps, w->count[x]);
        for (int row = 0; row < ROWS; row++)
            memcpy(out + row * out_stride + (size_t)x * CHANNELS, pixels + row * 4, 4);
    }
}

/* One row of the result from `count` rows, both padded to a multiple of `LANES` bytes. */
FAST static void down(uint8_t *out, const uint8_t *rows, const int32_t *values, int count,
                      size_t stride)
{
    for (size_t x = 0; x < stride; x += LANES)
        sum(out + x, rows + x, stride, values, count);
}

static int resize_region(uint8_t *out, const uint8_t *in, struct side across_in,
                         struct side down_in, const int box[4], int out_width, int out_height)
{
    int width = across_in.count, height = down_in.count;
    struct weights horizontal = {0}, vertical = {0};
    size_t row_bytes = (size_t)width * CHANNELS, out_bytes = (size_t)out_width * CHANNELS;
    size_t stride = (out_bytes + 1 + LANES - 1) / LANES * LANES;
    uint8_t *turned = NULL, *between = NULL, *last_row = NULL, *line = NULL;
    int done = weights_of(&horizontal, across_in, box[0], box[2], out_width);

    if (!done)
        done = weights_of(&vertical, down_in, box[1], box[3], out_height);
    if (done)
        goto end;
    done = -1;
    int first = vertical.first[0],
        end = vertical.first[out_height - 1] + vertical.count[out_height - 1];
    int last = out_width - 1,
        num_across = horizontal.first[last] + horizontal.count[last] - horizontal.first[0];
    turned = malloc((size_t)num_across * LANES);
    between = calloc((size_t)(end - first + ROWS) * stride, 1);
    last_row = calloc(row_bytes + 1, 1);
    line = malloc(stride);
    if (!turned || !between || !last_row || !line)
        goto end;
    memcpy(last_row, in + (height - 1) * row_bytes,
           row_bytes); /* copying four bytes must not read beyond the image */
    for (int y = first; y < end; y += ROWS) {
        const uint8_t *rows[ROWS];
        for (int row = 0; row < ROWS; row++)
            rows[row] = y + row < height - 1 ? in + (y + row) * row_bytes : last_row;
        across(between + (y - first) * stride, stride, rows, turned, &horizontal, out_width);
    }
    for (int y = 0; y < out_height; y++) {
        down(line, between + (vertical.first[y] - first) * stride,
             vertical.values + (size_t)y * vertical.taps, vertical.count[y], stride);
        memcpy(out + y * out_bytes, line, out_bytes);
    }
    done = 0;
end:
    weights_free(&horizontal);
    weights_free(&vertical);
    free(turned);
    free(between);
    free(last_row);
    free(line);
    return done;
}

static PyObject *resize(PyObject *module, PyObject *args)
{
    Py_buffer in;
    int width, height, box[4], out_width, out_height, left = 0, top = 0, part_width = 0,
                                                      part_height = 0, done = -1;
    PyObject *out = NULL;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*(ii)(iiii)(ii)|(iiii):resize", &in, &width, &height, &box[0],
                          &box[1], &box[2], &box[3], &out_width, &out_height, &left, &top,
                          &part_width, &part_height))
        return NULL;
    if (PyTuple_Size(args) < 5)
        part_width = width, part_height = height;
    int sides = width > 0 && height > 0 && width <= MAX_SIDE && height <= MAX_SIDE &&
                out_width > 0 && out_height > 0 && out_width <= MAX_SIDE && out_height <= MAX_SIDE;
    int inside = box[0] >= 0 && box[1] >= 0 && box[2] <= width && box[3] <= height &&
                 box[0] < box[2] && box[1] < box[3];
    int has_part = left >= 0 && top >= 0 && part_width > 0 && part_height > 0 &&
                   part_width <= width - left && part_height <= height - top;
    if (!sides || !inside || !has_part ||
        in.len != (Py_ssize_t)part_width * part_height * CHANNELS) {
        PyErr_SetString(PyExc_ValueError, "not an RGB image of this size, or not a box within it");
        goto end;
    }
    out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)out_width * out_height * CHANNELS);
    if (!out)
        goto end;
    uint8_t *bytes = (uint8_t *)PyBytes_AsString(out);
    Py_BEGIN_ALLOW_THREADS struct side across_in = {width, left, part_width},
                                       down_in = {height, top, part_height};
    done = resize_region(bytes, in.buf, across_in, down_in, box, out_width, out_height);
    Py_END_ALLOW_THREADS if (done < 0)
    {
        Py_CLEAR(out);
        if (done == -2)
            PyErr_SetString(PyExc_ValueError, "the part lacks pixels that the filter needs");
        else
            PyErr_NoMemory();
    }
end:
    PyBuffer_Release(&in);
    return out;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS,
     "resize(rgb, (width, height), (left, top, right, bottom), (out_width, out_height), (left, "
     "top, width, height)=all) -> bytes.\n\n"
     "All RGB, rows first. The last argument is the part of the image that `rgb` holds; what the "
     "filter needs must be in it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "ioprof._resize", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__resize(void)
{
    return PyModule_Create(&definition);
}
