/* Spans in bins of time: what `ioprof.report.page.overview` computes with NumPy where this library
 * was not built. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "sorted_table.h"

enum {
    STARTS,
    ENDS,
    MOVED,
    PROCESSES,
    KINDS,
    SOURCES, /* columns of the spans */
    KNOWN,
    PAIRS,
    LIMITS,
    CLASSES,
    SOURCES_OF_CLASS, /* tables */
    BUSY,
    LONGEST,
    DURATIONS,
    BYTES, /* what is added to */
    NUM_BUFFERS
};

enum { CODES_OF_CLASS = 512 }; /* in DURATIONS */

static const Py_ssize_t ITEM_BYTES[NUM_BUFFERS] = {8, 8, 8, 8, 1, 1, 8, 8, 8, 8, 8, 8, 1, 8, 8};

/* How many bins there are, and how long each is. */
typedef struct {
    int64_t count;
    double length_ns;
} Bins;

/* The bin of this number or, beyond them, the last; a number that no integer holds is beyond them
 * too. */
static int64_t bin_at(double number, int64_t count)
{
    return number < (double)count ? (int64_t)number : count - 1;
}

/* The last bin that something reaches into which ends at this number: that before its ceiling. */
static int64_t bin_before(double number, int64_t count)
{
    if (!(number < (double)count))
        return count - 1;
    int64_t whole = (int64_t)number;
    return (double)whole < number ? whole : whole - 1;
}

/* Adds one span with 0 <= start <= end; the arithmetic is that of the NumPy code, operation by
 * operation, so that the sums are the same. A span is in at least one bin. */
static void add_span(Py_buffer *v, Bins bins, int64_t start, int64_t end, int64_t pair,
                     uint8_t code, int64_t moved)
{
    int64_t number = ((int64_t *)v[CLASSES].buf)[pair],
            source = ((int64_t *)v[SOURCES_OF_CLASS].buf)[pair];
    double *busy = (double *)v[BUSY].buf + pair * bins.count;
    double *bytes = (double *)v[BYTES].buf + (source < 0 ? 0 : source) * bins.count;
    uint8_t *longest = (uint8_t *)v[LONGEST].buf + pair * bins.count;
    int64_t first = bin_at((double)start / bins.length_ns, bins.count);
    int64_t last = bin_before((double)end / bins.length_ns, bins.count);
    if (last < first)
        last = first;
    ((double *)v[DURATIONS].buf)[number * CODES_OF_CLASS + code] += 1;
    for (int64_t place = first; place <= last; place++) {
        double low = (double)place * bins.length_ns, high = (double)(place + 1) * bins.length_ns;
        double covered =
            ((double)end < high ? (double)end : high) - ((double)start > low ? (double)start : low);
        if (covered < 0)
            covered = 0;
        busy[place] += covered;
        if (code > longest[place])
            longest[place] = code;
        if (source < 0 || moved <= 0)
            continue;
        double part = first == last ? 1.0 : covered / (double)(end > start ? end - start : 1);
        bytes[place] += (double)moved * part;
    }
}

static int64_t clipped(int64_t time_ns, int64_t low, int64_t high)
{
    return time_ns < low ? low : time_ns > high ? high : time_ns;
}

/* How many kinds and sources PAIRS has for each process. */
typedef struct {
    Py_ssize_t kinds, sources;
} Keys;

/* Whether all lengths fit, and every pair, class and source is a place in the tables that it is
 * used for. */
static int are_sound(Py_buffer *v, Bins bins, Keys keys, int64_t end_ns)
{
    Py_ssize_t counts[NUM_BUFFERS];
    for (int i = 0; i < NUM_BUFFERS; i++) {
        counts[i] = v[i].len / ITEM_BYTES[i];
        if (v[i].len % ITEM_BYTES[i] != 0)
            return 0;
    }
    if (bins.count < 1 || !(bins.length_ns > 0) || end_ns < 0 ||
        counts[SOURCES_OF_CLASS] != counts[CLASSES])
        return 0;
    for (int i = ENDS; i <= SOURCES; i++) {
        if (counts[i] != counts[STARTS])
            return 0;
    }
    if (keys.kinds < 1 || keys.sources < 1 || keys.kinds > 256 || keys.sources > 256)
        return 0;
    if (counts[PAIRS] != (counts[KNOWN] + 1) * keys.kinds * keys.sources || counts[LIMITS] > 254)
        return 0;
    if (counts[BUSY] != counts[CLASSES] * bins.count || counts[LONGEST] != counts[BUSY])
        return 0;
    const int64_t *pairs = v[PAIRS].buf, *classes = v[CLASSES].buf,
                  *sources_of_class = v[SOURCES_OF_CLASS].buf;
    const uint8_t *kinds = v[KINDS].buf, *sources = v[SOURCES].buf;
    for (Py_ssize_t i = 0; i < counts[STARTS]; i++) {
        if (kinds[i] >= keys.kinds || sources[i] >= keys.sources)
            return 0;
    }
    for (Py_ssize_t i = 0; i < counts[PAIRS]; i++) {
        if (pairs[i] >= counts[CLASSES])
            return 0;
    }
    for (Py_ssize_t i = 0; i < counts[CLASSES]; i++) {
        if (classes[i] < 0 || classes[i] >= counts[DURATIONS] / CODES_OF_CLASS)
            return 0;
        if (sources_of_class[i] >= counts[BYTES] / bins.count)
            return 0;
    }
    return 1;
}

static void add_all(Py_buffer *v, Bins bins, Keys keys, int64_t end_ns)
{
    const int64_t *starts = v[STARTS].buf, *ends = v[ENDS].buf, *moved = v[MOVED].buf,
                  *processes = v[PROCESSES].buf;
    const int64_t *known = v[KNOWN].buf, *pairs = v[PAIRS].buf,
                  num_known = v[KNOWN].len / ITEM_BYTES[KNOWN];
    const uint8_t *kinds = v[KINDS].buf, *sources = v[SOURCES].buf;
    Table limits = table_of(v[LIMITS].buf, v[LIMITS].len);
    int64_t process = -1, place = num_known; /* spans of one process follow each other; the last
                                                place is of those without a lane */
    for (Py_ssize_t i = 0; i < v[KINDS].len; i++) {
        if (i == 0 || processes[i] != process) {
            process = processes[i];
            place = num_between(known, 0, num_known, process) - 1;
            if (place < 0 || known[place] != process)
                place = num_known;
        }
        int64_t pair = pairs[(place * keys.kinds + kinds[i]) * keys.sources + sources[i]];
        if (pair < 0)
            continue;
        int64_t start = clipped(starts[i], 0, end_ns), end = clipped(ends[i], start, end_ns);
        add_span(v, bins, start, end, pair, (uint8_t)(1 + num_up_to(&limits, end - start)),
                 moved[i]);
    }
}

static PyObject *add_spans(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[NUM_BUFFERS];
    Bins bins;
    Keys keys;
    long long end_ns;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*y*y*y*y*y*w*w*w*w*nndL", &v[0], &v[1], &v[2],
                          &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9], &v[10], &v[11], &v[12],
                          &v[13], &v[14], &keys.kinds, &keys.sources, &bins.length_ns, &end_ns))
        return NULL;
    Py_ssize_t num_pairs = v[CLASSES].len / 8;
    bins.count = num_pairs ? v[LONGEST].len / num_pairs : 1;
    int is_sound;
    Py_BEGIN_ALLOW_THREADS is_sound = are_sound(v, bins, keys, end_ns);
    if (is_sound)
        add_all(v, bins, keys, end_ns);
    Py_END_ALLOW_THREADS for (int i = 0; i < NUM_BUFFERS; i++) PyBuffer_Release(&v[i]);
    if (is_sound)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError,
                    "the buffers do not fit together, or a kind, a source or a pair is not known");
    return NULL;
}

static PyMethodDef methods[] = {
    {"add_spans", add_spans, METH_VARARGS,
     "Add spans to what was open in each bin; those of a pair below 0 are left out."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_bins", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bins(void)
{
    return PyModule_Create(&definition);
}
