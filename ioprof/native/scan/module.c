/* The scanners as types of Python: scan() takes text, piece by piece, and tables() gives what was
 * found. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "darshan.h"
#include "dftracer.h"
#include "kineto.h"

/* -------------------------------------------------------------------------------------- shared */

/* A list of words from a sequence of str; NULL: an error is set. The texts follow the words in the
 * same memory. */
static Word *words_of(PyObject *sequence)
{
    Py_ssize_t count = PySequence_Size(sequence);
    size_t bytes = 0;
    if (count < 0)
        return NULL;
    for (int is_filled = 0;; is_filled = 1) {
        Word *words = is_filled ? malloc(((size_t)count + 1) * sizeof(Word) + bytes + 1) : NULL;
        char *text = words ? (char *)(words + count + 1) : NULL;
        if (is_filled && !words)
            return (Word *)PyErr_NoMemory();
        for (Py_ssize_t place = 0; place < count; place++) {
            PyObject *item = PySequence_GetItem(sequence, place);
            Py_ssize_t size = 0;
            const char *found = item ? PyUnicode_AsUTF8AndSize(item, &size) : NULL;
            if (!found || (words && (size_t)size > bytes)) {
                if (found)
                    PyErr_SetString(PyExc_ValueError, "a sequence that changes");
                Py_XDECREF(item);
                free(words);
                return NULL;
            }
            if (words) {
                memcpy(text, found, (size_t)size);
                words[place] = (Word){text, (size_t)size};
                text += size;
                bytes -= (size_t)size;
            } else {
                bytes += (size_t)size;
            }
            Py_DECREF(item);
        }
        if (words) {
            words[count] = (Word){NULL, 0};
            return words;
        }
    }
}

static PyObject *new_object(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    (void)arguments, (void)keywords;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *rows_of(const Table *table)
{
    return PyBytes_FromStringAndSize((const char *)table->cells,
                                     (Py_ssize_t)(table->rows * table->columns * sizeof(int64_t)));
}

/* A list of the columns, each as bytes. */
static PyObject *columns_of(const Table *table)
{
    enum { MOST_COLUMNS = 16 };
    int64_t *columns[MOST_COLUMNS];
    PyObject *list = PyList_New((Py_ssize_t)table->columns);
    for (size_t column = 0; list && column < table->columns; column++) {
        PyObject *bytes =
            PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(table->rows * sizeof(int64_t)));
        columns[column] = bytes ? (int64_t *)PyBytes_AsString(bytes) : NULL;
        if (!bytes || PyList_SetItem(list, (Py_ssize_t)column, bytes) != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    for (size_t row = 0; list && row < table->rows; row++) {
        for (size_t column = 0; column < table->columns; column++)
            columns[column][row] = table->cells[row * table->columns + column];
    }
    return list;
}

/* The memory of columns, which is read through the buffer protocol, and freed with this object. */
typedef struct {
    PyObject_HEAD Columns columns;
} Cells;

static PyObject *cells_type;

static int cells_buffer(PyObject *object, Py_buffer *view, int flags)
{
    static int64_t none;
    const Columns *columns = &((Cells *)object)->columns;
    Py_ssize_t bytes = (Py_ssize_t)(columns->columns * columns->capacity * sizeof(int64_t));
    return PyBuffer_FillInfo(view, object, columns->cells ? columns->cells : &none, bytes, 1,
                             flags);
}

static void cells_free(PyObject *object)
{
    free_columns(&((Cells *)object)->columns);
    free_object(object);
}

static PyType_Slot cells_slots[] = {
    {Py_tp_dealloc, cells_free}, {Py_bf_getbuffer, cells_buffer}, {0, NULL}};

static PyType_Spec cells_spec = {
    "ioprof._scan.Cells", sizeof(Cells), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    cells_slots,
};

/* Columns, which are moved to an object of Python, and how many rows of them are in use. */
static PyObject *moved_columns(Columns *columns)
{
    PyObject *object = new_object((PyTypeObject *)cells_type, NULL, NULL);
    if (!object)
        return NULL;
    ((Cells *)object)->columns = *columns;
    columns->cells = NULL;
    free_columns(columns);
    return Py_BuildValue("Nn", object, (Py_ssize_t)((Cells *)object)->columns.rows);
}

static PyObject *list_of(const Strings *strings)
{
    PyObject *list = PyList_New((Py_ssize_t)strings->count);
    for (size_t number = 0; list && number < strings->count; number++) {
        size_t size;
        const char *text = string_at(strings, number, &size);
        PyObject *bytes = PyBytes_FromStringAndSize(text, (Py_ssize_t)size);
        if (!bytes || PyList_SetItem(list, (Py_ssize_t)number, bytes) != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

/* -------------------------------------------------------------------------------------- Kineto */

typedef struct {
    PyObject_HEAD KinetoScan scan;
    Word *words[4];
} KinetoScanner;

static int kineto_init(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    KinetoScanner *self = (KinetoScanner *)object;
    PyObject *given[4];
    unsigned long long seed;
    (void)keywords;
    if (self->words[0])
        return PyErr_SetString(PyExc_RuntimeError, "already initialised"), -1;
    if (!PyArg_ParseTuple(arguments, "KOOOO", &seed, &given[0], &given[1], &given[2], &given[3]))
        return -1;
    for (int place = 0; place < 4; place++) {
        if (!(self->words[place] = words_of(given[place])))
            return -1;
    }
    self->scan.activities = self->words[0];
    self->scan.launches = self->words[1];
    self->scan.host = self->words[2];
    self->scan.ranges = self->words[3];
    self->scan.of_device.columns = ACTIVITY_COLUMNS;
    self->scan.of_launches.columns = LAUNCH_COLUMNS;
    self->scan.left.columns = LEFT_COLUMNS;
    self->scan.strings.seed = seed;
    return 0;
}

static void kineto_free(PyObject *object)
{
    KinetoScanner *self = (KinetoScanner *)object;
    free_table(&self->scan.of_device);
    free_table(&self->scan.of_launches);
    free_table(&self->scan.left);
    free_strings(&self->scan.strings);
    for (int place = 0; place < 4; place++)
        free(self->words[place]);
    free_object(object);
}

static PyObject *kineto_scan(PyObject *object, PyObject *arguments)
{
    KinetoScanner *self = (KinetoScanner *)object;
    Py_buffer text;
    Py_ssize_t begin;
    int is_whole;
    size_t last = 0;
    if (!PyArg_ParseTuple(arguments, "y*np", &text, &begin, &is_whole))
        return NULL;
    bool is_possible =
        self->words[3] && begin >= 0 && begins_event(text.buf, (size_t)begin, (size_t)text.len);
    bool is_done = is_possible && scan_kineto(&self->scan, text.buf, (size_t)begin,
                                              (size_t)text.len, is_whole, &last);
    PyBuffer_Release(&text);
    if (!is_possible)
        return PyErr_Format(PyExc_ValueError, "no event begins at %zd", begin);
    return is_done ? Py_BuildValue("Nn", rows_of(&self->scan.left), (Py_ssize_t)last)
                   : PyErr_NoMemory();
}

static PyObject *kineto_tables(PyObject *object, PyObject *ignored)
{
    KinetoScanner *self = (KinetoScanner *)object;
    (void)ignored;
    return Py_BuildValue("NNN", rows_of(&self->scan.of_device), rows_of(&self->scan.of_launches),
                         list_of(&self->scan.strings));
}

static PyMethodDef kineto_methods[] = {
    {"scan", kineto_scan, METH_VARARGS,
     "Scan events in a text from a place; return those for the parser, and where the last one "
     "begins."},
    {"tables", kineto_tables, METH_NOARGS,
     "Rows of activities, rows of launches, and the strings that they number."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot kineto_slots[] = {
    {Py_tp_new, new_object},
    {Py_tp_init, kineto_init},
    {Py_tp_dealloc, kineto_free},
    {Py_tp_methods, kineto_methods},
    {0, NULL},
};

static PyType_Spec kineto_spec = {"ioprof._scan.KinetoScanner", sizeof(KinetoScanner), 0,
                                  Py_TPFLAGS_DEFAULT, kineto_slots};

/* ------------------------------------------------------------------------------------ DFTracer */

typedef struct {
    PyObject_HEAD DFTracerScan scan;
    Word *words[2];
} DFTracerScanner;

static int dftracer_init(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    DFTracerScanner *self = (DFTracerScanner *)object;
    PyObject *given[2];
    unsigned long long seed;
    (void)keywords;
    if (self->words[0])
        return PyErr_SetString(PyExc_RuntimeError, "already initialised"), -1;
    if (!PyArg_ParseTuple(arguments, "KOO", &seed, &given[0], &given[1]))
        return -1;
    for (int place = 0; place < 2; place++) {
        if (!(self->words[place] = words_of(given[place])))
            return -1;
    }
    self->scan.system_calls = self->words[0];
    self->scan.kept = self->words[1];
    self->scan.events.columns = EVENT_COLUMNS;
    self->scan.uses.columns = USE_COLUMNS;
    self->scan.explained.columns = EXPLAINED_COLUMNS;
    self->scan.left.columns = LINE_COLUMNS;
    self->scan.calls.seed = self->scan.names.seed = self->scan.hashes.seed = seed;
    return 0;
}

static void dftracer_free(PyObject *object)
{
    DFTracerScanner *self = (DFTracerScanner *)object;
    free_columns(&self->scan.events);
    free_table(&self->scan.uses);
    free_table(&self->scan.explained);
    free_table(&self->scan.left);
    free_strings(&self->scan.calls);
    free_strings(&self->scan.names);
    free_strings(&self->scan.hashes);
    for (int place = 0; place < 2; place++)
        free(self->words[place]);
    free_object(object);
}

static PyObject *dftracer_scan(PyObject *object, PyObject *arguments)
{
    DFTracerScanner *self = (DFTracerScanner *)object;
    Py_buffer text;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(arguments, "y*nn", &text, &begin, &end))
        return NULL;
    bool is_possible = self->words[1] && 0 <= begin && begin <= end && end <= text.len;
    bool is_done = is_possible && scan_dftracer(&self->scan, (const char *)text.buf + begin,
                                                (size_t)(end - begin));
    Py_ssize_t size = text.len;
    PyBuffer_Release(&text);
    if (!is_possible)
        return PyErr_Format(PyExc_ValueError, "no lines from %zd to %zd of %zd bytes", begin, end,
                            size);
    return is_done
               ? Py_BuildValue("NL", rows_of(&self->scan.left), (long long)self->scan.num_events)
               : PyErr_NoMemory();
}

static PyObject *dftracer_tables(PyObject *object, PyObject *ignored)
{
    DFTracerScan *scan = &((DFTracerScanner *)object)->scan;
    (void)ignored;
    return Py_BuildValue("NNNNNN", moved_columns(&scan->events), columns_of(&scan->uses),
                         columns_of(&scan->explained), list_of(&scan->calls), list_of(&scan->names),
                         list_of(&scan->hashes));
}

static PyMethodDef dftracer_methods[] = {
    {"scan", dftracer_scan, METH_VARARGS,
     "Scan whole lines of a text; return those for the decoder, and how many events there are so "
     "far."},
    {"tables", dftracer_tables, METH_NOARGS,
     "Columns of events, of uses of calls and of hashes; the calls, names and hashes that they "
     "number."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot dftracer_slots[] = {
    {Py_tp_new, new_object},
    {Py_tp_init, dftracer_init},
    {Py_tp_dealloc, dftracer_free},
    {Py_tp_methods, dftracer_methods},
    {0, NULL},
};

static PyType_Spec dftracer_spec = {"ioprof._scan.DFTracerScanner", sizeof(DFTracerScanner), 0,
                                    Py_TPFLAGS_DEFAULT, dftracer_slots};

/* ------------------------------------------------------------------------------------- Darshan */

typedef struct {
    PyObject_HEAD DarshanScan scan;
    enum { IS_NEW, IS_READY, HAS_ENDED } state; /* at its end the columns are gone */
} DarshanScanner;

static int darshan_init(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    DarshanScanner *self = (DarshanScanner *)object;
    unsigned long long seed;
    long long start_ns;
    int has_threads, is_swapped;
    (void)keywords;
    if (self->state != IS_NEW)
        return PyErr_SetString(PyExc_RuntimeError, "already initialised"), -1;
    if (!PyArg_ParseTuple(arguments, "KLpp", &seed, &start_ns, &has_threads, &is_swapped))
        return -1;
    if (start_ns < 0 || start_ns > INT64_MAX / 2)
        return PyErr_SetString(PyExc_ValueError, "an impossible time"), -1;
    self->scan.start_ns = start_ns;
    self->scan.has_threads = has_threads;
    self->scan.is_swapped = is_swapped;
    self->scan.reads.columns = READ_COLUMNS;
    self->scan.files.columns = FILE_COLUMNS;
    self->scan.hosts.seed = seed;
    self->state = IS_READY;
    return 0;
}

static void darshan_free(PyObject *object)
{
    DarshanScan *scan = &((DarshanScanner *)object)->scan;
    free_columns(&scan->reads);
    free_table(&scan->files);
    free_strings(&scan->hosts);
    free_object(object);
}

static PyObject *darshan_scan(PyObject *object, PyObject *arguments)
{
    DarshanScanner *self = (DarshanScanner *)object;
    Py_buffer data;
    if (!PyArg_ParseTuple(arguments, "y*", &data))
        return NULL;
    bool is_ready = self->state == IS_READY;
    bool is_done = is_ready && scan_darshan(&self->scan, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    if (!is_ready)
        return PyErr_SetString(PyExc_RuntimeError, "not initialised, or at its end"), NULL;
    if (!is_done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *darshan_tables(PyObject *object, PyObject *ignored)
{
    DarshanScanner *self = (DarshanScanner *)object;
    DarshanScan *scan = &self->scan;
    (void)ignored;
    end_darshan(scan);
    self->state = HAS_ENDED;
    return Py_BuildValue("NNNLLO", moved_columns(&scan->reads), rows_of(&scan->files),
                         list_of(&scan->hosts), (long long)scan->num_writes,
                         (long long)scan->num_impossible, scan->is_damaged ? Py_True : Py_False);
}

static PyMethodDef darshan_methods[] = {
    {"scan", darshan_scan, METH_VARARGS, "Scan the next bytes of the module's data."},
    {"tables", darshan_tables, METH_NOARGS,
     "After the last bytes: columns of reads, rows of files, hosts, and counts."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot darshan_slots[] = {
    {Py_tp_new, new_object},
    {Py_tp_init, darshan_init},
    {Py_tp_dealloc, darshan_free},
    {Py_tp_methods, darshan_methods},
    {0, NULL},
};

static PyType_Spec darshan_spec = {"ioprof._scan.DarshanScanner", sizeof(DarshanScanner), 0,
                                   Py_TPFLAGS_DEFAULT, darshan_slots};

/* ---------------------------------------------------------------------------------- the module */

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_scan", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void)
{
    static const struct {
        const char *name;
        PyType_Spec *spec;
    } types[] = {{"KinetoScanner", &kineto_spec},
                 {"DFTracerScanner", &dftracer_spec},
                 {"DarshanScanner", &darshan_spec}};
    if (!cells_type && !(cells_type = PyType_FromSpec(&cells_spec)))
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    for (size_t place = 0; module && place < sizeof(types) / sizeof(types[0]); place++) {
        PyObject *type = PyType_FromSpec(types[place].spec);
        if (!type || PyModule_AddObjectRef(module, types[place].name, type) != 0) {
            Py_XDECREF(type);
            Py_DECREF(module);
            return NULL;
        }
        Py_DECREF(type);
    }
    return module;
}
