/* Spans in bins of time: what `ioprof.report.page.overview` computes with NumPy where this library was not built. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

enum { STARTS, ENDS, PAIRS, CODES, MOVED, CLASSES, SOURCES, BUSY, LONGEST, DURATIONS, BYTES, NUM_BUFFERS };

enum { CODES_OF_CLASS = 512 }; /* in DURATIONS */

static const Py_ssize_t ITEM_BYTES[NUM_BUFFERS] = {8, 8, 8, 1, 8, 8, 8, 8, 1, 8, 8};

/* How many bins there are, and how long each is. */
typedef struct {
  int64_t count;
  double length_ns;
} Bins;

/* The bin of this number or, beyond them, the last; a number that no integer holds is beyond them too. */
static int64_t bin_at(double number, int64_t count) { return number < (double)count ? (int64_t)number : count - 1; }

/* Adds one span with 0 <= start <= end; the arithmetic is that of the NumPy code, operation by operation, so that the sums are
 * the same. A span is in at least one bin. */
static void add_span(Py_buffer *v, Bins bins, int64_t start, int64_t end, int64_t pair, uint8_t code, int64_t moved) {
  int64_t number = ((int64_t *)v[CLASSES].buf)[pair], source = ((int64_t *)v[SOURCES].buf)[pair];
  double *busy = (double *)v[BUSY].buf + pair * bins.count;
  double *bytes = (double *)v[BYTES].buf + (source < 0 ? 0 : source) * bins.count;
  uint8_t *longest = (uint8_t *)v[LONGEST].buf + pair * bins.count;
  int64_t first = bin_at((double)start / bins.length_ns, bins.count);
  int64_t last = bin_at(ceil((double)end / bins.length_ns) - 1, bins.count);
  if (last < first) last = first;
  ((double *)v[DURATIONS].buf)[number * CODES_OF_CLASS + code] += 1;
  for (int64_t place = first; place <= last; place++) {
    double low = (double)place * bins.length_ns, high = (double)(place + 1) * bins.length_ns;
    double covered = ((double)end < high ? (double)end : high) - ((double)start > low ? (double)start : low);
    if (covered < 0) covered = 0;
    busy[place] += covered;
    if (code > longest[place]) longest[place] = code;
    if (source < 0 || moved <= 0) continue;
    double part = first == last ? 1.0 : covered / (double)(end > start ? end - start : 1);
    bytes[place] += (double)moved * part;
  }
}

/* Whether all lengths fit, and every pair, class and source is a place in the tables that it is used for. */
static int are_sound(Py_buffer *v, Bins bins) {
  Py_ssize_t counts[NUM_BUFFERS];
  for (int i = 0; i < NUM_BUFFERS; i++) {
    counts[i] = v[i].len / ITEM_BYTES[i];
    if (v[i].len % ITEM_BYTES[i] != 0) return 0;
  }
  if (bins.count < 1 || !(bins.length_ns > 0) || counts[SOURCES] != counts[CLASSES]) return 0;
  for (int i = ENDS; i <= MOVED; i++) {
    if (counts[i] != counts[STARTS]) return 0;
  }
  if (counts[BUSY] != counts[CLASSES] * bins.count || counts[LONGEST] != counts[BUSY]) return 0;
  const int64_t *pairs = v[PAIRS].buf, *starts = v[STARTS].buf, *ends = v[ENDS].buf;
  const int64_t *classes = v[CLASSES].buf, *sources = v[SOURCES].buf;
  for (Py_ssize_t i = 0; i < counts[STARTS]; i++) {
    if (pairs[i] >= counts[CLASSES] || starts[i] < 0 || ends[i] < starts[i]) return 0;
  }
  for (Py_ssize_t i = 0; i < counts[CLASSES]; i++) {
    if (classes[i] < 0 || classes[i] >= counts[DURATIONS] / CODES_OF_CLASS || sources[i] >= counts[BYTES] / bins.count) return 0;
  }
  return 1;
}

static PyObject *add_spans(PyObject *module, PyObject *arguments) {
  (void)module;
  Py_buffer v[NUM_BUFFERS];
  Bins bins;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*y*w*w*w*w*d", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9],
                        &v[10], &bins.length_ns))
    return NULL;
  Py_ssize_t num_pairs = v[CLASSES].len / 8;
  bins.count = num_pairs ? v[LONGEST].len / num_pairs : 1;
  int is_sound;
  Py_BEGIN_ALLOW_THREADS
  is_sound = are_sound(v, bins);
  if (is_sound) {
    const int64_t *starts = v[STARTS].buf, *ends = v[ENDS].buf, *pairs = v[PAIRS].buf, *moved = v[MOVED].buf;
    const uint8_t *codes = v[CODES].buf;
    for (Py_ssize_t i = 0; i < v[CODES].len; i++) {
      if (pairs[i] >= 0) add_span(v, bins, starts[i], ends[i], pairs[i], codes[i], moved[i]);
    }
  }
  Py_END_ALLOW_THREADS
  for (int i = 0; i < NUM_BUFFERS; i++) PyBuffer_Release(&v[i]);
  if (is_sound) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "the buffers do not fit together, or a span is in no order or of no pair");
  return NULL;
}

static PyMethodDef methods[] = {
    {"add_spans", add_spans, METH_VARARGS, "Add spans to what was open in each bin; one with a pair below 0 is left out."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_bins", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bins(void) { return PyModule_Create(&definition); }
