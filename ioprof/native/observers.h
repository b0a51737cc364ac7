/* Callables that stand in the place of a library's functions and look on; included by spans.c. The Python twin is
 * ioprof/record/hooks/observers_twin.py.
 *
 * What they observe is called for every sample of a job, right after a decoder has driven everything else out of the processor's
 * caches: written in Python such a call costs a multiple of what it does in a loop. So what a thread has under way is
 * a few bytes of its own, and a call that is observed touches little else.
 *
 * An observer answers for what it observes: every attribute but those by which it is called is the original's, its class
 * included, so that inspect, copy, pickle and a user's isinstance take it for that function, and no traceback shows it. */
#ifndef IOPROF_OBSERVERS_H
#define IOPROF_OBSERVERS_H

enum { UNOBSERVED, OBSERVED, ASLEEP };

struct here {
    uint32_t generation; /* of `observing`; what is of another one is forgotten */
    bool transforming;   /* within an observed transform, */
    bool loading;        /* within Pillow's load, */
    bool decodes;        /* which has something to decode */
    int64_t begin_ns;    /* of the span of that transform */
    int64_t batch;       /* that it makes, -1: none, or of unknown number */
};

static struct {
    int state; /* of the above */
    uint32_t generation;
    PyObject *wake; /* what begins to record a process that is asleep */
    PyObject *tile, *format;
} observing = {.generation = 1};

static __thread struct here here_of_thread;

static inline struct here *get_here(void)
{
    struct here *here = &here_of_thread;
    if (here->generation != observing.generation)
        *here = (struct here){.generation = observing.generation, .batch = -1};
    return here;
}

/* ---------------------------------------------------------------------------------------- what is written */

static void redirect_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, PyObject *name, int64_t batch)
{
    PyObject *shown = name == NULL ? Py_None : name;
    PyObject *arguments = Py_BuildValue("(sLLO)", kind->text, (long long)start_ns, (long long)end_ns, shown);
    PyObject *keywords = Py_BuildValue("{sL}", "batch", (long long)batch);
    PyObject *result = arguments == NULL || keywords == NULL ? NULL : PyObject_Call(redirect.emit, arguments, keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(result);
}

/* Whatever fails here is not the job's: the caller clears it. */
static void write_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, PyObject *name, int64_t batch)
{
    if (mode & REDIRECTED) {
        redirect_span(kind, start_ns, end_ns, name, batch);
        return;
    }
    struct ioprof_ring *ring = current_ring();
    if (kind->number == 0 || !ring_is_open(ring))
        return;
    struct ioprof_record record = IOPROF_EMPTY_RECORD;
    record.kind = (uint8_t)kind->number;
    record.start_ns = start_ns;
    record.end_ns = end_ns;
    record.batch = batch;
    if (name != NULL && PyUnicode_Check(name) && name_id(name, &record.name) < 0)
        record.name = -1;
    ring_write(ring, &writer, &record);
}

/* An image was decoded by this thread; a transform that is under way goes on after that. */
static void write_decode(struct here *here, int64_t start_ns, int64_t end_ns, PyObject *name)
{
    if (here->transforming) {
        if (here->begin_ns < start_ns)
            write_span(&transform_kind, here->begin_ns, start_ns, NULL, here->batch);
        here->begin_ns = end_ns;
    }
    write_span(&decode_kind, start_ns, end_ns, name, here->batch);
}

/* An exception of our own is none of the job's; but a Ctrl-C that came meanwhile is, and comes again. */
static void drop_exception(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt))
        PyErr_SetInterrupt();
    PyErr_Clear();
}

static void wake_up(void)
{
    PyObject *result = observing.wake == NULL ? NULL : PyObject_CallNoArgs(observing.wake);
    if (result == NULL)
        drop_exception();
    Py_XDECREF(result);
}

/* An attribute of an image; NULL, and no exception, where it has none. */
static PyObject *attribute_of(PyObject *image, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(image, name);
    if (value == NULL)
        drop_exception();
    return value;
}

static bool is_true(PyObject *image, PyObject *name)
{
    PyObject *value = attribute_of(image, name);
    int result = value == NULL ? 0 : PyObject_IsTrue(value);
    if (result < 0)
        drop_exception();
    Py_XDECREF(value);
    return result > 0;
}

struct raised {
    PyObject *type, *value, *traceback;
};

/* What the original raised, if it did: while spans are written there shall be no exception. */
static inline struct raised put_aside(PyObject *result)
{
    struct raised raised = {NULL, NULL, NULL};
    if (result == NULL)
        PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
    return raised;
}

/* And no exception of ours is left. */
static inline void put_back(PyObject *result, struct raised raised)
{
    if (PyErr_Occurred())
        drop_exception();
    if (result == NULL)
        PyErr_Restore(raised.type, raised.value, raised.traceback);
}

/* ---------------------------------------------------------------------------------------- the callables */

typedef struct {
    PyObject_HEAD
    PyObject *original;
    PyObject *weak_references;
    vectorcallfunc call;
} Observer;

static inline PyObject *call_original(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    return PyObject_Vectorcall(((Observer *)self)->original, args, num_args, names);
}

/* Whether what was begun is this thread's still: not another recording's by now, or a parent's. */
static inline bool goes_on(const struct here *here, uint32_t generation)
{
    return here->generation == generation && observing.generation == generation;
}

static PyObject *call_transform(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    struct here *here = get_here();
    if (here->transforming || observing.state == UNOBSERVED)
        return call_original(self, args, num_args, names);
    if (observing.state == ASLEEP)
        wake_up();
    const uint32_t generation = here->generation;
    here->transforming = true;
    here->begin_ns = clock_now();
    PyObject *result = call_original(self, args, num_args, names);
    if (!goes_on(here, generation))
        return result;
    const int64_t end_ns = clock_now();
    struct raised raised = put_aside(result);
    here->transforming = false;
    if (here->begin_ns < end_ns)
        write_span(&transform_kind, here->begin_ns, end_ns, NULL, here->batch);
    put_back(result, raised);
    return result;
}

static PyObject *call_load(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    if (observing.state == UNOBSERVED)
        return call_original(self, args, num_args, names);
    struct here *here = get_here();
    PyObject *image = PyVectorcall_NARGS(num_args) < 1 ? Py_None : args[0];
    const bool has_tiles = is_true(image, observing.tile);
    if (here->loading) { /* a format's own load, which calls the common one */
        here->decodes |= has_tiles;
        return call_original(self, args, num_args, names);
    }
    const uint32_t generation = here->generation;
    here->loading = true;
    here->decodes = has_tiles;
    const int64_t start_ns = clock_now();
    PyObject *result = call_original(self, args, num_args, names);
    if (!goes_on(here, generation))
        return result;
    here->loading = false;
    if (!here->decodes)
        return result;
    const int64_t end_ns = clock_now();
    struct raised raised = put_aside(result);
    if (observing.state == ASLEEP)
        wake_up();
    PyObject *format = attribute_of(image, observing.format);
    write_decode(here, start_ns, end_ns, format);
    Py_XDECREF(format);
    put_back(result, raised);
    return result;
}

/* ---------------------------------------------------------------------------------------- as what they appear */

/* By these it is called, bound, kept and found again; the original answers for all others, the class among them. */
static bool is_own(PyObject *name)
{
    static const char *const own[] = {"__call__", "__get__", "__wrapped__", "__reduce__", "__reduce_ex__", "_ioprof_observes"};
    for (size_t place = 0; PyUnicode_Check(name) && place < sizeof own / sizeof *own; place++)
        if (PyUnicode_CompareWithASCIIString(name, own[place]) == 0)
            return true;
    return false;
}

static PyObject *observer_get_attribute(PyObject *self, PyObject *name)
{
    return is_own(name) ? PyObject_GenericGetAttr(self, name) : PyObject_GetAttr(((Observer *)self)->original, name);
}

static int observer_set_attribute(PyObject *self, PyObject *name, PyObject *value)
{
    return is_own(name) ? PyObject_GenericSetAttr(self, name, value) : PyObject_SetAttr(((Observer *)self)->original, name, value);
}

static PyObject *observer_repr(PyObject *self)
{
    return PyObject_Repr(((Observer *)self)->original);
}

static PyObject *observer_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* Its qualified name: what is found there in a process without ioprof is the library's own. */
static PyObject *observer_reduce(PyObject *self, PyObject *Py_UNUSED(protocol))
{
    return PyObject_GetAttrString(((Observer *)self)->original, "__qualname__");
}

static int observer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Observer *)self)->original);
    return 0;
}

static int observer_clear(PyObject *self)
{
    Py_CLEAR(((Observer *)self)->original);
    return 0;
}

static void observer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    observer_clear(self);
    PyObject_GC_Del(self);
}

static PyMethodDef observer_methods[] = {
    {"__reduce__", observer_reduce, METH_NOARGS, NULL},
    {"__reduce_ex__", observer_reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef observer_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Observer, original), READONLY, NULL},
    {"_ioprof_observes", T_OBJECT, offsetof(Observer, original), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject ObserverType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ioprof._native.Observer",
    .tp_basicsize = sizeof(Observer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(Observer, call),
    .tp_weaklistoffset = offsetof(Observer, weak_references),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = observer_bind,
    .tp_getattro = observer_get_attribute,
    .tp_setattro = observer_set_attribute,
    .tp_repr = observer_repr,
    .tp_traverse = observer_traverse,
    .tp_clear = observer_clear,
    .tp_dealloc = observer_dealloc,
    .tp_methods = observer_methods,
    .tp_members = observer_members,
};

static PyObject *new_observer(PyObject *original, vectorcallfunc call)
{
    Observer *observer = PyObject_GC_New(Observer, &ObserverType);
    if (observer == NULL)
        return NULL;
    observer->original = Py_NewRef(original);
    observer->weak_references = NULL;
    observer->call = call;
    PyObject_GC_Track(observer);
    return (PyObject *)observer;
}

/* ---------------------------------------------------------------------------------------- module functions */

static PyObject *native_transforming(PyObject *Py_UNUSED(module), PyObject *original)
{
    return new_observer(original, call_transform);
}

static PyObject *native_loading(PyObject *Py_UNUSED(module), PyObject *original)
{
    return new_observer(original, call_load);
}

static PyObject *native_watch(PyObject *Py_UNUSED(module), PyObject *args)
{
    int is_on, is_asleep;
    PyObject *wake;
    if (!PyArg_ParseTuple(args, "ppO", &is_on, &is_asleep, &wake))
        return NULL;
    observing.state = !is_on ? UNOBSERVED : is_asleep ? ASLEEP : OBSERVED;
    Py_XSETREF(observing.wake, Py_NewRef(wake));
    Py_RETURN_NONE;
}

static PyObject *native_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    observing.generation++;
    Py_RETURN_NONE;
}

static PyObject *native_makes(PyObject *Py_UNUSED(module), PyObject *number)
{
    int overflow;
    long long batch = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (batch == -1 && PyErr_Occurred())
        return NULL;
    get_here()->batch = overflow ? -1 : batch;
    Py_RETURN_NONE;
}

static PyObject *native_decoded(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long start_ns, end_ns;
    PyObject *name;
    if (!PyArg_ParseTuple(args, "LLO", &start_ns, &end_ns, &name))
        return NULL;
    write_decode(get_here(), start_ns, end_ns, name);
    drop_exception();
    Py_RETURN_NONE;
}

static int prepare_observers(void)
{
    observing.tile = PyUnicode_InternFromString("tile");
    observing.format = PyUnicode_InternFromString("format");
    return observing.tile == NULL || observing.format == NULL ? -1 : PyType_Ready(&ObserverType);
}

#endif
