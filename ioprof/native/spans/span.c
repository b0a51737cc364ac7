#include "span.h"

#include "arguments.h"
#include "clock.h"
#include "fields.h"
#include "inactive.h"
#include "labels.h"
#include "state.h"

#define FREE_SPANS 32

/* ---------------------------------------------------------------------------------------- Span */

typedef struct {
    PyObject_HEAD PyObject *name;
    uint32_t generation; /* of the recording it belongs to */
    struct ioprof_record record;
} Span;

static PyTypeObject *span_type;
static Span *free_spans[FREE_SPANS];
static int num_free_spans;

static Span *new_span(uint32_t generation)
{
    Span *span = num_free_spans > 0 ? free_spans[--num_free_spans] : PyObject_Malloc(sizeof *span);
    if (span == NULL)
        return (Span *)PyErr_NoMemory();
    PyObject_Init((PyObject *)span, span_type);
    span->name = NULL;
    span->generation = generation;
    span->record = IOPROF_EMPTY_RECORD;
    return span;
}

static void span_dealloc(PyObject *self)
{
    Span *span = (Span *)self;
    Py_CLEAR(span->name);
    if (num_free_spans < FREE_SPANS)
        free_spans[num_free_spans++] = span;
    else
        PyObject_Free(span);
    Py_DECREF(span_type);
}

static PyObject *span_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ((Span *)self)->record.start_ns = clock_now();
    return Py_NewRef(self);
}

static PyObject *span_exit(PyObject *self, PyObject *const *Py_UNUSED(args),
                           Py_ssize_t Py_UNUSED(num_args))
{
    Span *span = (Span *)self;
    struct ioprof_ring *ring = current_ring();
    span->record.end_ns = clock_now();
    if (span->generation == atomic_load_explicit(&ring->generation, memory_order_relaxed) &&
        span->record.start_ns != 0)
        ring_write(ring, &writer, &span->record);
    Py_RETURN_NONE;
}

static PyObject *span_get(PyObject *self, void *field)
{
    return PyLong_FromLongLong(load_field(&((Span *)self)->record, field));
}

static int span_set(PyObject *self, PyObject *value, void *field)
{
    if (value != NULL)
        return store_field(&((Span *)self)->record, field, value);
    PyErr_Format(PyExc_AttributeError, "%s cannot be deleted", ((struct field *)field)->name);
    return -1;
}

static PyObject *span_get_name(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *name = ((Span *)self)->name;
    return Py_NewRef(name == NULL ? Py_None : name);
}

static int span_set_name(PyObject *self, PyObject *name, void *Py_UNUSED(closure))
{
    Span *span = (Span *)self;
    int32_t id = -1;
    bool current = span->generation == atomic_load(&current_ring()->generation);
    if (name != NULL && name != Py_None && current && name_id(name, &id) < 0)
        return -1;
    span->record.name = id;
    IOPROF_SET_REFERENCE(span->name, name == NULL || name == Py_None ? NULL : Py_NewRef(name));
    return 0;
}

static PyMethodDef span_methods[] = {
    {"__enter__", span_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))span_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

#define ATTRIBUTE(place, doc) {NULL, span_get, span_set, doc, &fields[place]}

static PyGetSetDef span_attributes[] = {
    ATTRIBUTE(0, "The step, -1: none."),
    ATTRIBUTE(1, "The batch, -1: none."),
    ATTRIBUTE(2, "Bytes moved, -1: does not apply."),
    ATTRIBUTE(3, "What intern() returned, -1: none."),
    ATTRIBUTE(4, "Byte offset in the file, -1: does not apply."),
    ATTRIBUTE(5, "Device stream, -1: a host thread."),
    ATTRIBUTE(6, "STORAGE, PAGE_CACHE or UNKNOWN; 0: not a read."),
    {"name", span_get_name, span_set_name, "Name, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot span_slots[] = {
    {Py_tp_doc,
     (void *)"A span that is being recorded: from the start to the end of its with block."},
    {Py_tp_dealloc, span_dealloc},
    {Py_tp_methods, span_methods},
    {Py_tp_getset, span_attributes},
    {0, NULL},
};

static PyType_Spec span_specification = {
    .name = "ioprof._native.Span",
    .basicsize = sizeof(Span),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = span_slots,
};

int prepare_spans(void)
{
    for (int place = 0; place < NUM_FIELDS; place++)
        span_attributes[place].name = fields[place].name;
    span_type = (PyTypeObject *)PyType_FromSpec(&span_specification);
    return span_type == NULL ? -1 : 0;
}

/* ----------------------------------------------------------------------------------- functions */

PyObject *native_span(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args,
                      PyObject *names)
{
    static const int order[] = {KIND, NAME};
    if (mode == 0)
        return Py_NewRef(inactive_span);
    if (mode & REDIRECTED)
        return PyObject_Vectorcall(redirection.span, args, (size_t)num_args, names);
    uint32_t generation = atomic_load_explicit(&current_ring()->generation, memory_order_relaxed);
    if (generation == 0)
        return Py_NewRef(inactive_span);
    Span *span = new_span(generation);
    if (span == NULL)
        return NULL;
    PyObject *arguments[NUM_WORDS] = {NULL};
    if (take_arguments("span", args, num_args, names, 2, order, arguments, &span->record) < 0 ||
        set_label(&span->record, arguments[KIND], arguments[NAME], &span->name) < 0)
        Py_CLEAR(span);
    return (PyObject *)span;
}

static int take_times(struct ioprof_record *record, PyObject *start, PyObject *end)
{
    record->start_ns = PyLong_AsLongLong(start);
    record->end_ns = PyLong_AsLongLong(end);
    if (PyErr_Occurred())
        return -1;
    if (record->end_ns >= record->start_ns)
        return 0;
    PyErr_Format(PyExc_ValueError, "a span cannot end (%lld ns) before it starts (%lld ns)",
                 (long long)record->end_ns, (long long)record->start_ns);
    return -1;
}

PyObject *native_emit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args,
                      PyObject *names)
{
    static const int order[] = {KIND, START, END, NAME};
    if (mode & REDIRECTED)
        return PyObject_Vectorcall(redirection.emit, args, (size_t)num_args, names);
    struct ioprof_record record = IOPROF_EMPTY_RECORD;
    PyObject *arguments[NUM_WORDS] = {NULL}, *shown = NULL;
    if (take_arguments("emit", args, num_args, names, 4, order, arguments, &record) < 0 ||
        take_times(&record, arguments[START], arguments[END]) < 0)
        return NULL;
    struct ioprof_ring *ring = current_ring();
    if (!ring_is_open(ring))
        Py_RETURN_NONE;
    if (set_label(&record, arguments[KIND], arguments[NAME], &shown) < 0)
        return NULL;
    Py_XDECREF(shown);
    ring_write(ring, &writer, &record);
    Py_RETURN_NONE;
}
