/* Sets of time in linear passes: what `ioprof.analysis.intervals` computes with NumPy where this
 * library was not built.
 *
 * An argument is two buffers of int64, starts and ends, of equal length. A normal set is sorted,
 * disjoint, without empty intervals, and no two touch. Results are written to buffers that the
 * caller made large enough; a buffer that is too small raises ValueError.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    const int64_t *starts, *ends;
    size_t count;
} Set;

typedef struct {
    int64_t *starts, *ends;
    size_t count;
} Result;

static Set set_of(const Py_buffer *starts, const Py_buffer *ends)
{
    return (Set){starts->buf, ends->buf, (size_t)starts->len / sizeof(int64_t)};
}

static void add(Result *result, int64_t start, int64_t end)
{
    result->starts[result->count] = start;
    result->ends[result->count++] = end;
}

/* Whether the starts of the intervals that are not empty are in order; if so, `result` is their
 * union, else it is undefined. */
static int unite_ordered(Set set, Result *result)
{
    int64_t before = INT64_MIN;
    for (size_t i = 0; i < set.count; i++) {
        int64_t start = set.starts[i], end = set.ends[i];
        if (start >= end)
            continue;
        if (start < before)
            return 0;
        before = start;
        if (result->count && start <= result->ends[result->count - 1]) {
            if (end > result->ends[result->count - 1])
                result->ends[result->count - 1] = end;
        } else {
            add(result, start, end);
        }
    }
    return 1;
}

/* Divides the normal set `whole` into what the normal set `part` covers and the rest: both are
 * normal, since two intervals of a result that touched would touch in `whole`, and in `part` or in
 * its complement. */
static void divide(Set whole, Set part, Result *covered, Result *rest)
{
    size_t place = 0;
    for (size_t i = 0; i < whole.count; i++) {
        int64_t start = whole.starts[i], end = whole.ends[i];
        while (place < part.count && part.ends[place] <= start)
            place++;
        for (; place < part.count && part.starts[place] < end; place++) {
            int64_t low = part.starts[place] > start ? part.starts[place] : start;
            int64_t high = part.ends[place] < end ? part.ends[place] : end;
            if (low > start)
                add(rest, start, low);
            add(covered, low, high);
            start = high;
            if (part.ends[place] >= end)
                break; /* it may reach into the next interval, too */
        }
        if (start < end)
            add(rest, start, end);
    }
}

/* The first place whose value is greater than `value`, or not less than it, looked for from `hint`
 * on: pieces are nearly in order. */
static size_t search(const int64_t *values, size_t count, int64_t value, int is_equal_before,
                     size_t hint)
{
#define IS_BEFORE(i) (values[i] < value || (is_equal_before && values[i] == value))
    size_t low = 0, high = count, step = 1;
    if (hint > count)
        hint = count;
    if (hint > 0 && !IS_BEFORE(hint - 1)) {
        high = hint - 1;
        while (high >= step && !IS_BEFORE(high - step)) {
            high -= step;
            step *= 2;
        }
        low = high >= step ? high - step + 1 : 0;
    } else {
        low = hint;
        while (low + step <= count && IS_BEFORE(low + step - 1)) {
            low += step;
            step *= 2;
        }
        if (low + step <= count)
            high = low + step - 1;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (IS_BEFORE(middle))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
#undef IS_BEFORE
}

/* What of each piece lies in the normal set, and the number of the piece: as many as there is
 * `room` for. Returns how many there are; they are only counted if `numbers` is NULL. */
static size_t overlaps(Set pieces, Set normal, int64_t *numbers, Result *result, size_t room)
{
    size_t total = 0, low = 0, high = 0;
    for (size_t i = 0; i < pieces.count; i++) {
        int64_t start = pieces.starts[i], end = pieces.ends[i];
        low = search(normal.ends, normal.count, start, 1, low);
        high = search(normal.starts, normal.count, end, 0, high);
        if (high <= low)
            continue;
        total += high - low;
        if (numbers == NULL || total > room)
            continue;
        for (size_t j = low; j < high; j++) {
            numbers[result->count] = (int64_t)i;
            add(result, normal.starts[j] > start ? normal.starts[j] : start,
                normal.ends[j] < end ? normal.ends[j] : end);
        }
    }
    return total;
}

/* How much of a normal set lies before each instant, which are nearly in order; `before` is how
 * much lies before each interval. */
static void measure(Set normal, const int64_t *before, const int64_t *instants, size_t count,
                    int64_t *found)
{
    size_t place = 0;
    for (size_t i = 0; i < count; i++) {
        place = search(normal.starts, normal.count, instants[i], 1, place);
        if (!place) {
            found[i] = 0;
            continue;
        }
        uint64_t start = (uint64_t)normal.starts[place - 1],
                 until = (uint64_t)normal.ends[place - 1];
        if (instants[i] < normal.ends[place - 1])
            until = (uint64_t)instants[i];
        found[i] = (int64_t)((uint64_t)before[place - 1] + until -
                             start); /* wraps around, as NumPy's do */
    }
}

/* Where the time of a worker lies on an axis that has the time of all of them end to end, each
 * `stride` long. */
typedef struct {
    const int64_t *workers;
    size_t count;
    int64_t origin, stride;
} Axis;

static int64_t clipped(Axis axis, int64_t time)
{
    if (time < axis.origin)
        return 0;
    uint64_t since = (uint64_t)time - (uint64_t)axis.origin;
    return since < (uint64_t)axis.stride ? (int64_t)since : axis.stride - 1;
}

static void place_all(Axis axis, const int64_t *of_worker, Set set, Result *result)
{
    uint64_t shift = 0;
    for (size_t i = 0; i < set.count; i++) {
        if (!i || of_worker[i] != of_worker[i - 1]) { /* spans of one worker follow each other */
            shift = (uint64_t)search(axis.workers, axis.count, of_worker[i], 0, 0) *
                    (uint64_t)axis.stride;
        }
        add(result, (int64_t)((uint64_t)clipped(axis, set.starts[i]) + shift),
            (int64_t)((uint64_t)clipped(axis, set.ends[i]) + shift));
    }
}

static int are_sets(const Py_buffer *views, int number)
{
    for (int i = 0; i < number; i++) {
        if (views[2 * i].len != views[2 * i + 1].len ||
            views[2 * i].len % (Py_ssize_t)sizeof(int64_t) != 0) {
            PyErr_SetString(PyExc_ValueError, "starts and ends are not int64 of equal length");
            return 0;
        }
    }
    return 1;
}

static void release(Py_buffer *views, int number)
{
    for (int i = 0; i < number; i++)
        PyBuffer_Release(&views[i]);
}

static int is_room(size_t needed, const Py_buffer *starts)
{
    if (needed <= (size_t)starts->len / sizeof(int64_t))
        return 1;
    PyErr_SetString(PyExc_ValueError, "too little room for the result");
    return 0;
}

static PyObject *unite(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[4];
    if (!PyArg_ParseTuple(arguments, "y*y*w*w*", &v[0], &v[1], &v[2], &v[3]))
        return NULL;
    PyObject *found = NULL;
    Set set = set_of(&v[0], &v[1]);
    if (are_sets(v, 2) && is_room(set.count, &v[2])) {
        Result result = {v[2].buf, v[3].buf, 0};
        int is_ordered;
        Py_BEGIN_ALLOW_THREADS is_ordered = unite_ordered(set, &result);
        Py_END_ALLOW_THREADS found = PyLong_FromSsize_t(is_ordered ? (Py_ssize_t)result.count : -1);
    }
    release(v, 4);
    return found;
}

static PyObject *split(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[8];
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*w*w*w*", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                          &v[6], &v[7]))
        return NULL;
    PyObject *found = NULL;
    Set whole = set_of(&v[0], &v[1]), part = set_of(&v[2], &v[3]);
    size_t most = whole.count + part.count;
    if (are_sets(v, 4) && is_room(most, &v[4]) && is_room(most, &v[6])) {
        Result covered = {v[4].buf, v[5].buf, 0}, rest = {v[6].buf, v[7].buf, 0};
        Py_BEGIN_ALLOW_THREADS divide(whole, part, &covered, &rest);
        Py_END_ALLOW_THREADS found =
            Py_BuildValue("nn", (Py_ssize_t)covered.count, (Py_ssize_t)rest.count);
    }
    release(v, 8);
    return found;
}

static PyObject *count_overlaps(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[4];
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*", &v[0], &v[1], &v[2], &v[3]))
        return NULL;
    PyObject *found = NULL;
    if (are_sets(v, 2)) {
        Set pieces = set_of(&v[0], &v[1]), normal = set_of(&v[2], &v[3]);
        size_t total;
        Py_BEGIN_ALLOW_THREADS total = overlaps(pieces, normal, NULL, NULL, 0);
        Py_END_ALLOW_THREADS found = PyLong_FromSize_t(total);
    }
    release(v, 4);
    return found;
}

static PyObject *find_overlaps(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[7];
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*w*w*", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                          &v[6]))
        return NULL;
    PyObject *found = NULL;
    if (are_sets(v, 3)) {
        Set pieces = set_of(&v[0], &v[1]), normal = set_of(&v[2], &v[3]);
        Result result = {v[4].buf, v[5].buf, 0};
        size_t total, room = (size_t)(v[4].len < v[6].len ? v[4].len : v[6].len) / sizeof(int64_t);
        Py_BEGIN_ALLOW_THREADS total = overlaps(pieces, normal, v[6].buf, &result, room);
        Py_END_ALLOW_THREADS if (is_room(total, &v[4]) && is_room(total, &v[6])) found =
            PyLong_FromSize_t(total);
    }
    release(v, 7);
    return found;
}

static PyObject *covered_before(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[5];
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*", &v[0], &v[1], &v[2], &v[3], &v[4]))
        return NULL;
    PyObject *found = NULL;
    Set normal = set_of(&v[0], &v[1]);
    if (v[2].len != v[0].len) {
        PyErr_SetString(PyExc_ValueError,
                        "starts and what lies before them are not of equal length");
    } else if (are_sets(v, 1) && is_room((size_t)v[3].len / sizeof(int64_t), &v[4])) {
        Py_BEGIN_ALLOW_THREADS measure(normal, v[2].buf, v[3].buf,
                                       (size_t)v[3].len / sizeof(int64_t), v[4].buf);
        Py_END_ALLOW_THREADS found = Py_NewRef(Py_None);
    }
    release(v, 5);
    return found;
}

static PyObject *place(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[6];
    long long origin, stride;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*w*LL", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
                          &origin, &stride))
        return NULL;
    PyObject *found = NULL;
    Set set = set_of(&v[2], &v[3]);
    if (v[1].len != v[2].len || stride < 1) {
        PyErr_SetString(PyExc_ValueError,
                        "workers and starts are not of equal length, or the axis has none");
    } else if (are_sets(&v[2], 2) && is_room(set.count, &v[4])) {
        Result result = {v[4].buf, v[5].buf, 0};
        Axis axis = {v[0].buf, (size_t)v[0].len / sizeof(int64_t), origin, stride};
        Py_BEGIN_ALLOW_THREADS place_all(axis, v[1].buf, set, &result);
        Py_END_ALLOW_THREADS found = Py_NewRef(Py_None);
    }
    release(v, 6);
    return found;
}

static PyMethodDef methods[] = {
    {"unite", unite, METH_VARARGS,
     "The union of a set, to two buffers: how many intervals it has, or -1 if the set is not "
     "sorted by starts."},
    {"split", split, METH_VARARGS,
     "What of a normal set another one covers, and the rest, to four buffers: the number of both."},
    {"count_overlaps", count_overlaps, METH_VARARGS, "How many intervals `find_overlaps` finds."},
    {"find_overlaps", find_overlaps, METH_VARARGS,
     "What of each interval of a set lies in a normal set, and its place, to three buffers."},
    {"covered_before", covered_before, METH_VARARGS,
     "How much of a normal set, with what lies before each interval, lies before each instant."},
    {"place", place, METH_VARARGS,
     "Where intervals of workers lie on an axis that has the time of each worker after that of the "
     "one before."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_intervals", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__intervals(void)
{
    return PyModule_Create(&definition);
}
