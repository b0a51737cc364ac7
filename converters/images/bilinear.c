/* Resizes a region of an RGB image by the antialiased bilinear filter, flips it, and writes its
 * three planes to where they belong in a batch: exactly what torch's `interpolate(mode="bilinear",
 * antialias=True)` gives for bytes where it has AVX2, on every processor.
 *
 * torch (aten/src/ATen/native/cpu/UpSampleKernel.cpp, UpSampleKernelAVXAntialias.h) rounds the
 * weights of each side to 16 bits, with as many fractional bits as the largest of them leaves room
 * for. Rows come first, then columns; both passes sum in 32 bits and round to a byte. So the order
 * of summation does not matter. Between the passes a few rows are kept, of four bytes per pixel: as
 * many as one row of the result needs. All is done without the interpreter's lock.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && (__GNUC__ >= 8 || defined(__clang__))
#include <immintrin.h>
#define HAS_AVX2 1
#else
#define HAS_AVX2 0
#endif

#define CHANNELS 3
#define PIXEL 4        /* bytes of a pixel between the passes; the last has no meaning */
#define ROWS 8         /* that the first pass makes at once */
#define TAPS 4         /* the weights of a pixel are filled up with zeros to a multiple of it */
#define WEIGHT_BITS 15 /* of a weight, without its sign */
#define MOST_PRECISION 22
#define STEP 32 /* bytes that the second pass makes at once */
#define MAX_SIDE 65535

/* For each pixel of a side of the result: the first pixel that it is made of, how many, and their
 * weights. */
struct weights {
    int taps;      /* size of `values` per pixel */
    int pairs;     /* of weights, of the pixel with most of them */
    int precision; /* fractional bits */
    int *first;
    int *count;
    int16_t *values;
};

static void weights_free(struct weights *weights)
{
    free(weights->first);
    free(weights->count);
    free(weights->values);
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Weights of one pixel, as fractions of 1; returns the first pixel that has one. */
static int fractions_of(double *one, int *count, int place, int in, double scale, int most)
{
    double support = scale >= 1.0 ? scale : 1.0, inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    double centre = scale * (place + 0.5), total = 0.0;
    int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
    low = low < 0 ? 0 : low;
    high = high > in ? in : high;
    *count = high - low < 0 ? 0 : high - low > most ? most : high - low;
    for (int i = 0; i < *count; i++) {
        one[i] = triangle((i + low - centre + 0.5) * inverse);
        total += one[i];
    }
    for (int i = 0; total != 0.0 && i < *count; i++)
        one[i] /= total;
    return low;
}

/* From `in` to `out` pixels. Returns -1 without memory. */
static int weights_of(struct weights *weights, int in, int out)
{
    double scale = (double)in / out, largest = 0.0;
    int most = (int)ceil(scale >= 1.0 ? scale : 1.0) * 2 + 1;

    weights->taps = (most + TAPS - 1) / TAPS * TAPS;
    double *fractions = malloc((size_t)out * most * sizeof *fractions);
    weights->first = malloc(out * sizeof *weights->first);
    weights->count = malloc(out * sizeof *weights->count);
    weights->values = calloc((size_t)out * weights->taps, sizeof *weights->values);
    if (!fractions || !weights->first || !weights->count || !weights->values) {
        free(fractions);
        return -1;
    }
    for (int place = 0; place < out; place++) {
        double *one = fractions + (size_t)place * most;
        weights->first[place] = fractions_of(one, &weights->count[place], place, in, scale, most);
        for (int i = 0; i < weights->count[place]; i++)
            largest = one[i] > largest ? one[i] : largest;
        weights->pairs = (weights->count[place] + 1) / 2 > weights->pairs
                             ? (weights->count[place] + 1) / 2
                             : weights->pairs;
    }
    for (weights->precision = 0; weights->precision < MOST_PRECISION; weights->precision++)
        if ((int)(0.5 + largest * (1 << (weights->precision + 1))) >= 1 << WEIGHT_BITS)
            break;
    for (int place = 0; place < out; place++)
        for (int i = 0; i < weights->count[place]; i++)
            weights->values[(size_t)place * weights->taps + i] =
                (int16_t)(0.5 + fractions[(size_t)place * most + i] * (1 << weights->precision));
    free(fractions);
    return 0;
}

/* ------------------------------------------------------------------------------ the two passes */

/* Where the pixels of a row go: to the right, or to the left from the last one on. */
struct line {
    int width;
    int is_flipped;
};

/* `ROWS` rows of RGB to as many rows of the new width, which are `stride` bytes apart. */
typedef void across(uint8_t *out, size_t stride, const uint8_t *const rows[ROWS],
                    const struct weights *weights, struct line line);

/* `count` rows, each with a weight, to one row of each of three planes. */
typedef void down(uint8_t *const planes[CHANNELS], const uint8_t *const *rows,
                  const int16_t *values, int count, int precision, int width);

static uint8_t byte_of(int32_t sum, int precision)
{
    sum >>= precision;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

static void across_plain(uint8_t *out, size_t stride, const uint8_t *const rows[ROWS],
                         const struct weights *weights, struct line line)
{
    int32_t half = (int32_t)(1u << weights->precision >> 1);
    for (int x = 0; x < line.width; x++) {
        const int16_t *values = weights->values + (size_t)x * weights->taps;
        size_t to = (size_t)(line.is_flipped ? line.width - 1 - x : x) * PIXEL;
        for (int row = 0; row < ROWS; row++) {
            const uint8_t *in = rows[row] + (size_t)weights->first[x] * CHANNELS;
            int32_t red = half, green = half, blue = half;
            for (int tap = 0; tap < weights->count[x]; tap++, in += CHANNELS) {
                red += in[0] * values[tap];
                green += in[1] * values[tap];
                blue += in[2] * values[tap];
            }
            uint8_t *pixel = out + row * stride + to;
            pixel[0] = byte_of(red, weights->precision);
            pixel[1] = byte_of(green, weights->precision);
            pixel[2] = byte_of(blue, weights->precision);
        }
    }
}

static void down_plain(uint8_t *const planes[CHANNELS], const uint8_t *const *rows,
                       const int16_t *values, int count, int precision, int width)
{
    for (int x = 0; x < width; x += STEP / PIXEL) {
        int32_t sums[STEP];
        for (int i = 0; i < STEP; i++)
            sums[i] = (int32_t)(1u << precision >> 1);
        for (int row = 0; row < count; row++)
            for (int i = 0; i < STEP; i++)
                sums[i] += rows[row][(size_t)x * PIXEL + i] * values[row];
        for (int i = 0; i < STEP / PIXEL && x + i < width; i++)
            for (int channel = 0; channel < CHANNELS; channel++)
                planes[channel][x + i] = byte_of(sums[i * PIXEL + channel], precision);
    }
}

#if HAS_AVX2

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i pair_of(const int16_t *values)
{
    int32_t both;
    memcpy(&both, values, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Bytes of two rows, one in each half. */
AVX2 static inline __m256i both_rows(const uint8_t *one, const uint8_t *other)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)one)),
                                   _mm_loadu_si128((const __m128i *)other), 1);
}

AVX2 static inline __m256i plus(__m256i sums, __m256i bytes, __m256i order, __m256i pair)
{
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, order), pair));
}

/* Of each row four pixels are read, and multiplied two by two. What is read beyond those that count
 * has a weight of zero. `pairs`: of the pixel with most of them; a constant for the compiler, which
 * then makes a loop without branches. */
AVX2 static inline __attribute__((always_inline)) void across_pairs(uint8_t *out, size_t stride,
                                                                    const uint8_t *const rows[ROWS],
                                                                    const struct weights *weights,
                                                                    struct line line, int pairs)
{
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    const __m256i half = _mm256_set1_epi32((int32_t)(1u << weights->precision >> 1));
    const __m128i shift = _mm_cvtsi32_si128(weights->precision);
    const int16_t *values = weights->values;
    uint8_t *to = out + (line.is_flipped ? (size_t)(line.width - 1) * PIXEL : 0);
    ptrdiff_t step = line.is_flipped ? -PIXEL : PIXEL;
    for (int x = 0; x < line.width; x++, to += step, values += weights->taps) {
        size_t from = (size_t)weights->first[x] * CHANNELS;
        __m256i sums[ROWS / 2] = {half, half, half, half};
        for (int tap = 0; tap < 2 * pairs; tap += TAPS, from += TAPS * CHANNELS) {
            __m256i pair = pair_of(values + tap), next = pair_of(values + tap + 2);
            for (int row = 0; row < ROWS / 2; row++) {
                __m256i bytes = both_rows(rows[2 * row] + from, rows[2 * row + 1] + from);
                sums[row] = plus(sums[row], bytes, first, pair);
                if (2 * pairs > tap + 2)
                    sums[row] = plus(sums[row], bytes, second, next);
            }
        }
        __m256i upper =
            _mm256_packs_epi32(_mm256_sra_epi32(sums[0], shift), _mm256_sra_epi32(sums[1], shift));
        __m256i lower =
            _mm256_packs_epi32(_mm256_sra_epi32(sums[2], shift), _mm256_sra_epi32(sums[3], shift));
        uint8_t bytes[2 * ROWS / 2 * PIXEL];
        _mm256_storeu_si256(
            (__m256i *)bytes,
            _mm256_packus_epi16(upper, lower)); /* rows 0, 2, 4, 6, and 1, 3, 5, 7 */
        for (int row = 0; row < ROWS; row++)
            memcpy(to + row * stride, bytes + (row / 2 + row % 2 * (ROWS / 2)) * PIXEL, PIXEL);
    }
}

AVX2 static void across_avx2(uint8_t *out, size_t stride, const uint8_t *const rows[ROWS],
                             const struct weights *weights, struct line line)
{
    switch (weights->pairs) {
    case 1:
        across_pairs(out, stride, rows, weights, line, 1);
        break;
    case 2:
        across_pairs(out, stride, rows, weights, line, 2);
        break;
    case 3:
        across_pairs(out, stride, rows, weights, line, 3);
        break;
    case 4:
        across_pairs(out, stride, rows, weights, line, 4);
        break;
    default:
        across_pairs(out, stride, rows, weights, line, weights->pairs);
    }
}

AVX2 static void down_avx2(uint8_t *const planes[CHANNELS], const uint8_t *const *rows,
                           const int16_t *values, int count, int precision, int width)
{
    const __m256i zero = _mm256_setzero_si256(),
                  half = _mm256_set1_epi32((int32_t)(1u << precision >> 1));
    const __m256i by_plane = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i halves = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m128i shift = _mm_cvtsi32_si128(precision);
    for (int x = 0; x < width; x += STEP / PIXEL) {
        __m256i sums[4] = {half, half, half, half};
        for (int row = 0; row < count; row += 2) { /* a weight beyond the last is zero */
            __m256i above = _mm256_loadu_si256((const __m256i *)(rows[row] + (size_t)x * PIXEL));
            __m256i below =
                row + 1 < count
                    ? _mm256_loadu_si256((const __m256i *)(rows[row + 1] + (size_t)x * PIXEL))
                    : zero;
            __m256i pair = pair_of(values + row), low = _mm256_unpacklo_epi8(above, below),
                    high = _mm256_unpackhi_epi8(above, below);
            sums[0] =
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
            sums[1] =
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
            sums[2] = _mm256_add_epi32(sums[2],
                                       _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
            sums[3] = _mm256_add_epi32(sums[3],
                                       _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
        }
        __m256i low =
            _mm256_packs_epi32(_mm256_sra_epi32(sums[0], shift), _mm256_sra_epi32(sums[1], shift));
        __m256i high =
            _mm256_packs_epi32(_mm256_sra_epi32(sums[2], shift), _mm256_sra_epi32(sums[3], shift));
        __m256i apart = _mm256_permutevar8x32_epi32(
            _mm256_shuffle_epi8(_mm256_packus_epi16(low, high), by_plane), halves);
        uint8_t bytes[STEP];
        _mm256_storeu_si256((__m256i *)bytes, apart);
        for (int channel = 0; channel < CHANNELS; channel++)
            memcpy(planes[channel] + x, bytes + channel * (STEP / PIXEL),
                   width - x < STEP / PIXEL ? (size_t)(width - x) : STEP / PIXEL);
    }
}

#endif

/* ------------------------------------------------------------------------------------ a region */

struct region {
    const uint8_t *pixels; /* the first */
    size_t stride;
    const uint8_t *end; /* of the image */
    int width, height;
};

/* Rows between the passes: row `y` of them is in place `y % capacity`. */
struct rows {
    uint8_t *bytes;
    const uint8_t **pointers;
    uint8_t *copies; /* of the last rows of an image, so that reading beyond them is allowed */
    size_t copy_stride;
    int capacity, num_done;
    size_t stride;
};

static void rows_free(struct rows *rows)
{
    free(rows->bytes);
    free(rows->pointers);
    free(rows->copies);
}

static int rows_make(struct rows *rows, const struct weights *horizontal,
                     const struct weights *vertical, int out_width, int in_width)
{
    rows->capacity = (vertical->taps + 2 * ROWS - 1) / ROWS * ROWS;
    rows->stride = (size_t)out_width * PIXEL + STEP;
    rows->bytes = calloc(rows->capacity, rows->stride);
    rows->pointers = malloc((size_t)vertical->taps * sizeof *rows->pointers);
    rows->copy_stride =
        ((size_t)in_width + horizontal->taps) * CHANNELS + PIXEL; /* as far as a row is read */
    rows->copies = calloc(ROWS, rows->copy_stride);
    return rows->bytes && rows->pointers && rows->copies ? 0 : -1;
}

/* The next rows of the first pass. */
static void make_rows(struct rows *rows, const struct region *region,
                      const struct weights *horizontal, struct line line, across *across)
{
    const uint8_t *from[ROWS];
    for (int row = 0; row < ROWS; row++) {
        int y = rows->num_done + row < region->height ? rows->num_done + row : region->height - 1;
        from[row] = region->pixels + y * region->stride;
        if ((size_t)(region->end - from[row]) < rows->copy_stride) {
            uint8_t *copy = rows->copies + row * rows->copy_stride;
            memcpy(copy, from[row], (size_t)region->width * CHANNELS);
            from[row] = copy;
        }
    }
    across(rows->bytes + rows->num_done % rows->capacity * rows->stride, rows->stride, from,
           horizontal, line);
    rows->num_done += ROWS;
}

static int resize(uint8_t *out, const struct region *region, struct line line, int out_height,
                  across *across, down *down)
{
    struct weights horizontal = {0}, vertical = {0};
    struct rows rows = {0};
    size_t plane = (size_t)line.width * out_height;
    int done = weights_of(&horizontal, region->width, line.width);

    if (!done)
        done = weights_of(&vertical, region->height, out_height);
    if (!done)
        done = rows_make(&rows, &horizontal, &vertical, line.width, region->width);
    for (int y = 0; !done && y < out_height; y++) {
        int first = vertical.first[y], count = vertical.count[y];
        while (rows.num_done < first + count)
            make_rows(&rows, region, &horizontal, line, across);
        for (int row = 0; row < count; row++)
            rows.pointers[row] = rows.bytes + (size_t)((first + row) % rows.capacity) * rows.stride;
        uint8_t *start = out + (size_t)y * line.width;
        uint8_t *const planes[CHANNELS] = {start, start + plane, start + 2 * plane};
        down(planes, rows.pointers, vertical.values + (size_t)y * vertical.taps, count,
             vertical.precision, line.width);
    }
    weights_free(&horizontal);
    weights_free(&vertical);
    rows_free(&rows);
    return done;
}

/* -------------------------------------------------------------------------------------- Python */

static int has_avx2(void)
{
#if HAS_AVX2
    return __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}

static int resize_here(uint8_t *out, const struct region *region, struct line line, int out_height,
                       int is_plain)
{
#if HAS_AVX2
    if (!is_plain && has_avx2())
        return resize(out, region, line, out_height, across_avx2, down_avx2);
#endif
    (void)is_plain;
    return resize(out, region, line, out_height, across_plain, down_plain);
}

static PyObject *resize_planes(PyObject *module, PyObject *args)
{
    Py_buffer in, out;
    int width, height, box[4], out_width, out_height, is_flipped, is_plain = 0, done = -1;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*(ii)(iiii)w*(ii)p|p:resize_planes", &in, &width, &height,
                          &box[0], &box[1], &box[2], &box[3], &out, &out_width, &out_height,
                          &is_flipped, &is_plain))
        return NULL;
    int sides = width > 0 && height > 0 && width <= MAX_SIDE && height <= MAX_SIDE &&
                out_width > 0 && out_height > 0 && out_width <= MAX_SIDE && out_height <= MAX_SIDE;
    int inside = box[0] >= 0 && box[1] >= 0 && box[2] <= width && box[3] <= height &&
                 box[0] < box[2] && box[1] < box[3];
    if (!sides || !inside || in.len != (Py_ssize_t)width * height * CHANNELS ||
        out.len != (Py_ssize_t)out_width * out_height * CHANNELS) {
        PyErr_SetString(
            PyExc_ValueError,
            "not an RGB image of this size, not a box within it, or not room for the result");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS size_t stride = (size_t)width * CHANNELS;
    const uint8_t *pixels = in.buf;
    struct region region = {pixels + box[1] * stride + (size_t)box[0] * CHANNELS, stride,
                            pixels + in.len, box[2] - box[0], box[3] - box[1]};
    done =
        resize_here(out.buf, &region, (struct line){out_width, is_flipped}, out_height, is_plain);
    Py_END_ALLOW_THREADS if (done < 0) PyErr_NoMemory();
end:
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resize_planes", resize_planes, METH_VARARGS,
     "resize_planes(rgb, (width, height), (left, top, right, bottom), out, (out_width, "
     "out_height), flipped, plain=False): the box of\n"
     "the image as three planes in `out`. With `plain` the processor's vectors are not used; the "
     "result is the same."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "ioprof._bilinear", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bilinear(void)
{
    return PyModule_Create(&definition);
}
