/* ioprof._native: spans for CPython, written to a capture file by ring.h. The Python twin is ioprof/record/ring.py.
 *
 * All state is guarded by the GIL, except what ring.h does with atomics when a thread ends. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "clock.h"

#define MAX_KINDS 254
#define FREE_SPANS 32

/* Known strings are forgotten when there are this many: 1.28 million paths, held by every worker of a node, would take more
 * memory than a profiler may. A string that comes again is then written again, and the reader makes the two one. */
#define MAX_KNOWN_STRINGS (1 << 17)

enum { RECORDING = 1, REHEARSING = 2, REDIRECTED = 4 };

static int mode; /* a set of the above; 0: off */
static struct ioprof_ring recording;
static struct ioprof_ring rehearsal;
static __thread struct ioprof_writer writer; /* writer.ring is &rehearsal only while this thread rehearses */
static __thread struct ioprof_writer writer_before_rehearsal;
static PyObject *known_strings;              /* str -> id in `recording` */
static PyObject *kinds[MAX_KINDS];           /* interned; the place plus one is the kind's number */
static int num_kinds;
static int user_kind;
static struct kind {
    const char *text;
    int number; /* 0: there is none */
} transform_kind = {"transform", 0}, decode_kind = {"decode", 0};
static struct {
    PyObject *span, *emit, *intern;
} redirect;

static inline struct ioprof_ring *current_ring(void)
{
    return writer.ring == &rehearsal ? &rehearsal : &recording;
}

/* ---------------------------------------------------------------------------------------- fields of a record */

struct field {
    const char *name;
    size_t offset;
    size_t bytes;
    long long low;
    long long high;
};

#define FIELD(name, low, high) {#name, offsetof(struct ioprof_record, name), sizeof((struct ioprof_record){0}.name), low, high}

static struct field fields[] = {
    FIELD(step, INT32_MIN, INT32_MAX), FIELD(batch, INT64_MIN, INT64_MAX),  FIELD(bytes, INT64_MIN, INT64_MAX),
    FIELD(file, INT32_MIN, INT32_MAX), FIELD(offset, INT64_MIN, INT64_MAX), FIELD(stream, INT16_MIN, INT16_MAX),
    FIELD(source, 0, 3),
};
#define NUM_FIELDS ((int)(sizeof fields / sizeof *fields))

/* Interned. Each in an array of its own, which a call that comes back to cold caches has with one look at the memory. */
static PyObject *field_keywords[sizeof fields / sizeof *fields];

static long long load_field(const struct ioprof_record *record, const struct field *field)
{
    const char *place = (const char *)record + field->offset;
    switch (field->bytes) {
    case 8:
        return *(const int64_t *)place;
    case 4:
        return *(const int32_t *)place;
    case 2:
        return *(const int16_t *)place;
    default:
        return *(const uint8_t *)place;
    }
}

static int store_field(struct ioprof_record *record, const struct field *field, PyObject *value)
{
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (number == -1 && !overflow && PyErr_Occurred())
        return -1;
    if (overflow || number < field->low || number > field->high) {
        PyErr_Format(PyExc_ValueError, "%s=%R is not within %lld..%lld", field->name, value, field->low, field->high);
        return -1;
    }
    char *place = (char *)record + field->offset;
    switch (field->bytes) {
    case 8:
        *(int64_t *)place = number;
        break;
    case 4:
        *(int32_t *)place = (int32_t)number;
        break;
    case 2:
        *(int16_t *)place = (int16_t)number;
        break;
    default:
        *(uint8_t *)place = (uint8_t)number;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------- strings */

/* Bytes as the file system has them; what cannot be encoded is written as a backslash escape. */
static PyObject *encoded(PyObject *text)
{
    PyObject *data = PyUnicode_EncodeFSDefault(text);
    if (data == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        data = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    }
    return data;
}

static int write_string(PyObject *text, int32_t *id)
{
    PyObject *data = encoded(text);
    if (data == NULL)
        return -1;
    *id = ring_string(&recording, &writer, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data));
    Py_DECREF(data);
    if (*id < 0)
        return 0;
    if (PyDict_GET_SIZE(known_strings) >= MAX_KNOWN_STRINGS)
        PyDict_Clear(known_strings);
    PyObject *number = PyLong_FromLong(*id);
    int result = number == NULL ? -1 : PyDict_SetItem(known_strings, text, number);
    Py_XDECREF(number);
    return result;
}

/* The id of a str in the current recording; -1 in `id` where there is none. */
static int string_id(PyObject *text, int32_t *id)
{
    *id = -1;
    if (current_ring() != &recording)
        return 0;
    PyObject *number = PyDict_GetItemWithError(known_strings, text);
    if (number != NULL) {
        *id = (int32_t)PyLong_AsLong(number);
        return 0;
    }
    return PyErr_Occurred() ? -1 : write_string(text, id);
}

/* A str itself, not one of a subclass whose hash or equality could be anything. Borrowed where it is one already. */
static int name_id(PyObject *name, int32_t *id)
{
    if (PyUnicode_CheckExact(name))
        return string_id(name, id);
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "a span's name is a str, not %.100s", Py_TYPE(name)->tp_name);
        return -1;
    }
    PyObject *plain = PyUnicode_FromObject(name);
    int result = plain == NULL ? -1 : string_id(plain, id);
    Py_XDECREF(plain);
    return result;
}

/* ---------------------------------------------------------------------------------------- arguments */

enum { KIND, NAME, START, END, NUM_WORDS };

static const char *const words[NUM_WORDS] = {"kind", "name", "start_ns", "end_ns"};
static PyObject *word_keywords[NUM_WORDS];

static int intern_keywords(void)
{
    for (int place = 0; place < NUM_FIELDS; place++)
        if ((field_keywords[place] = PyUnicode_InternFromString(fields[place].name)) == NULL)
            return -1;
    for (int place = 0; place < NUM_WORDS; place++)
        if ((word_keywords[place] = PyUnicode_InternFromString(words[place])) == NULL)
            return -1;
    return 0;
}

static inline bool same(PyObject *left, PyObject *right, bool by_value)
{
    return left == right || (by_value && PyUnicode_Compare(left, right) == 0);
}

/* Keywords in calls are interned by the compiler, so that comparing pointers finds them; text is compared only if that fails. */
static int take_keyword(const char *function, PyObject *keyword, PyObject *value, PyObject **arguments, int num_words,
                        const int *order, struct ioprof_record *record)
{
    for (int by_value = 0; by_value < 2; by_value++) {
        for (int place = 0; place < NUM_FIELDS; place++)
            if (same(keyword, field_keywords[place], by_value))
                return store_field(record, &fields[place], value);
        for (int place = 0; place < num_words; place++) {
            if (!same(keyword, word_keywords[order[place]], by_value))
                continue;
            if (arguments[order[place]] != NULL) {
                PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function, keyword);
                return -1;
            }
            arguments[order[place]] = value;
            return 0;
        }
    }
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, keyword);
    return -1;
}

/* Positional arguments in `order`, then keywords; the first `num_words - 1`, or all but the name, must be given. */
static int take_arguments(const char *function, PyObject *const *args, Py_ssize_t num_args, PyObject *names, int num_words,
                          const int *order, PyObject **arguments, struct ioprof_record *record)
{
    if (num_args > num_words) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)", function, num_words, num_args);
        return -1;
    }
    for (Py_ssize_t place = 0; place < num_args; place++)
        arguments[order[place]] = args[place];
    Py_ssize_t num_keywords = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t place = 0; place < num_keywords; place++)
        if (take_keyword(function, PyTuple_GET_ITEM(names, place), args[num_args + place], arguments, num_words, order, record) < 0)
            return -1;
    for (int place = 0; place < num_words; place++)
        if (arguments[order[place]] == NULL && order[place] != NAME) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", function, words[order[place]]);
            return -1;
        }
    return 0;
}

static int kind_number(PyObject *kind)
{
    for (int place = 0; place < num_kinds; place++)
        if (kinds[place] == kind)
            return place + 1;
    for (int place = 0; place < num_kinds; place++)
        if (PyUnicode_Compare(kinds[place], kind) == 0)
            return place + 1;
    return 0;
}

/* Kind and name of a record. A string that is no kind is the name of a user's own span, before the name given, if any.
 * `*shown` becomes a new reference to the name, or NULL. */
static int set_label(struct ioprof_record *record, PyObject *kind, PyObject *name, PyObject **shown)
{
    if (!PyUnicode_Check(kind)) {
        PyErr_Format(PyExc_TypeError, "a span's kind is a str, not %.100s", Py_TYPE(kind)->tp_name);
        return -1;
    }
    *shown = name == NULL || name == Py_None ? NULL : Py_NewRef(name);
    int number = kind_number(kind);
    record->kind = (uint8_t)(number ? number : user_kind);
    if (number == 0) {
        PyObject *label = *shown == NULL ? Py_NewRef(kind) : PyUnicode_FromFormat("%U %S", kind, *shown);
        Py_XSETREF(*shown, label);
        if (label == NULL)
            return -1;
    }
    if (*shown == NULL || name_id(*shown, &record->name) == 0)
        return 0;
    Py_CLEAR(*shown);
    return -1;
}

/* ---------------------------------------------------------------------------------------- Span */

typedef struct {
    PyObject_HEAD
    PyObject *name;
    uint32_t generation; /* of the recording it belongs to */
    struct ioprof_record record;
} Span;

static PyTypeObject SpanType;
static Span *free_spans[FREE_SPANS];
static int num_free_spans;

static Span *new_span(uint32_t generation)
{
    Span *span = num_free_spans > 0 ? free_spans[--num_free_spans] : PyObject_Malloc(sizeof *span);
    if (span == NULL)
        return (Span *)PyErr_NoMemory();
    PyObject_Init((PyObject *)span, &SpanType);
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
}

static PyObject *span_enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    ((Span *)self)->record.start_ns = clock_now();
    return Py_NewRef(self);
}

static PyObject *span_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(num_args))
{
    Span *span = (Span *)self;
    struct ioprof_ring *ring = current_ring();
    span->record.end_ns = clock_now();
    if (span->generation == atomic_load_explicit(&ring->generation, memory_order_relaxed) && span->record.start_ns != 0)
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
    Py_XSETREF(span->name, name == NULL || name == Py_None ? NULL : Py_NewRef(name));
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

static PyTypeObject SpanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ioprof._native.Span",
    .tp_doc = "A span that is being recorded: from the start to the end of its with block.",
    .tp_basicsize = sizeof(Span),
    .tp_dealloc = span_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_methods = span_methods,
    .tp_getset = span_attributes,
};

/* ---------------------------------------------------------------------------------------- what span() gives when off */

static PyObject *nothing;

static PyObject *nothing_enter(PyObject *Py_UNUSED(module), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(num_args))
{
    return Py_NewRef(nothing);
}

static PyObject *nothing_exit(PyObject *Py_UNUSED(module), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(num_args))
{
    Py_RETURN_NONE;
}

static int nothing_set(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(name), PyObject *Py_UNUSED(value))
{
    return 0;
}

static PyObject *nothing_get(PyObject *Py_UNUSED(self), void *field)
{
    struct ioprof_record empty = IOPROF_EMPTY_RECORD;
    return PyLong_FromLongLong(load_field(&empty, field));
}

static PyObject *nothing_get_name(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    Py_RETURN_NONE;
}

/* Not methods but functions in the type's dict, which need not be bound to the one instance: that saves an allocation each. */
static PyMethodDef nothing_functions[] = {
    {"__enter__", (PyCFunction)(void (*)(void))nothing_enter, METH_FASTCALL, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))nothing_exit, METH_FASTCALL, NULL},
};

static PyGetSetDef nothing_attributes[NUM_FIELDS + 2];

static PyTypeObject NothingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ioprof._native.Nothing",
    .tp_doc = "What span() returns while nothing is recorded: attributes can be set, and are forgotten.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_getset = nothing_attributes,
    .tp_setattro = nothing_set,
};

static int add_nothing_functions(void)
{
    for (int place = 0; place < 2; place++) {
        PyObject *function = PyCFunction_New(&nothing_functions[place], NULL);
        if (function == NULL || PyDict_SetItemString(NothingType.tp_dict, nothing_functions[place].ml_name, function) < 0)
            return -1;
        Py_DECREF(function);
    }
    PyType_Modified(&NothingType);
    return 0;
}

static void name_attributes(void)
{
    for (int place = 0; place < NUM_FIELDS; place++) {
        span_attributes[place].name = fields[place].name;
        nothing_attributes[place] = (PyGetSetDef){fields[place].name, nothing_get, NULL, NULL, &fields[place]};
    }
    nothing_attributes[NUM_FIELDS] = (PyGetSetDef){"name", nothing_get_name, NULL, NULL, NULL};
}

/* ---------------------------------------------------------------------------------------- module functions */

static PyObject *native_span(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args, PyObject *names)
{
    static const int order[] = {KIND, NAME};
    if (mode == 0)
        return Py_NewRef(nothing);
    if (mode & REDIRECTED)
        return PyObject_Vectorcall(redirect.span, args, (size_t)num_args, names);
    uint32_t generation = atomic_load_explicit(&current_ring()->generation, memory_order_relaxed);
    if (generation == 0)
        return Py_NewRef(nothing);
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
    PyErr_Format(PyExc_ValueError, "a span cannot end (%lld ns) before it starts (%lld ns)", (long long)record->end_ns,
                 (long long)record->start_ns);
    return -1;
}

static PyObject *native_emit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args, PyObject *names)
{
    static const int order[] = {KIND, START, END, NAME};
    if (mode & REDIRECTED)
        return PyObject_Vectorcall(redirect.emit, args, (size_t)num_args, names);
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

static PyObject *native_intern(PyObject *Py_UNUSED(module), PyObject *path)
{
    if (mode & REDIRECTED)
        return PyObject_CallOneArg(redirect.intern, path);
    if (!ring_is_open(&recording))
        return PyLong_FromLong(-1);
    PyObject *text = PyOS_FSPath(path);
    if (text != NULL && PyBytes_Check(text))
        Py_SETREF(text, PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)));
    if (text == NULL)
        return NULL;
    int32_t id;
    int result = name_id(text, &id);
    Py_DECREF(text);
    return result < 0 ? NULL : PyLong_FromLong(id);
}

static void forget_kinds(void)
{
    for (; num_kinds > 0; num_kinds--)
        Py_CLEAR(kinds[num_kinds - 1]);
}

static void find_number(struct kind *kind)
{
    int place = 0;
    while (place < num_kinds && PyUnicode_CompareWithASCIIString(kinds[place], kind->text) != 0)
        place++;
    kind->number = place < num_kinds ? place + 1 : 0;
}

/* The last kind is the one of users' own spans. */
static int take_kinds(PyObject *names)
{
    if (PyTuple_GET_SIZE(names) < 1 || PyTuple_GET_SIZE(names) > MAX_KINDS) {
        PyErr_SetString(PyExc_ValueError, "kinds: between 1 and 254");
        return -1;
    }
    forget_kinds();
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(names); place++) {
        PyObject *name = PyTuple_GET_ITEM(names, place);
        if (!PyUnicode_CheckExact(name)) {
            PyErr_SetString(PyExc_TypeError, "kinds: strings");
            return -1;
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        kinds[num_kinds++] = name;
    }
    user_kind = num_kinds;
    find_number(&transform_kind);
    find_number(&decode_kind);
    return 0;
}

static PyObject *native_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *path, *names;
    Py_buffer header;
    int rehearse = 0;
    if (!PyArg_ParseTuple(args, "O&y*O!|p", PyUnicode_FSConverter, &path, &header, &PyTuple_Type, &names, &rehearse))
        return NULL;
    struct ioprof_ring *ring = rehearse ? &rehearsal : &recording;
    int result = -1;
    if (mode & (rehearse ? REHEARSING : RECORDING))
        PyErr_SetString(PyExc_RuntimeError, "already recording");
    else if (header.len != sizeof(struct ioprof_file_header))
        PyErr_SetString(PyExc_ValueError, "header: 216 bytes");
    else if (take_kinds(names) == 0) {
        clock_setup();
        result = ring_open(ring, PyBytes_AS_STRING(path), header.buf);
        if (result < 0)
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, PyBytes_AS_STRING(path));
    }
    PyBuffer_Release(&header);
    Py_DECREF(path);
    if (result < 0)
        return NULL;
    if (rehearse) {
        writer_before_rehearsal = writer;
        writer = (struct ioprof_writer){.ring = &rehearsal};
    } else {
        PyDict_Clear(known_strings);
    }
    mode |= rehearse ? REHEARSING : RECORDING;
    Py_RETURN_NONE;
}

static PyObject *native_stop(PyObject *Py_UNUSED(module), PyObject *args)
{
    int rehearse = 0;
    if (!PyArg_ParseTuple(args, "|p", &rehearse))
        return NULL;
    struct ioprof_ring *ring = rehearse ? &rehearsal : &recording;
    if (ring_is_open(ring))
        ring_close(ring);
    if (rehearse)
        writer = writer_before_rehearsal;
    else
        PyDict_Clear(known_strings);
    mode &= ~(rehearse ? REHEARSING : RECORDING);
    Py_RETURN_NONE;
}

static PyObject *native_is_recording(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(ring_is_open(&recording));
}

static PyObject *native_lost(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(ring_lost(&recording));
}

static PyObject *native_redirect(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *span = NULL, *emit = NULL, *intern = NULL;
    if (!PyArg_ParseTuple(args, "|OOO", &span, &emit, &intern))
        return NULL;
    mode = intern == NULL ? mode & ~REDIRECTED : mode | REDIRECTED;
    Py_XSETREF(redirect.span, Py_XNewRef(span));
    Py_XSETREF(redirect.emit, Py_XNewRef(emit));
    Py_XSETREF(redirect.intern, Py_XNewRef(intern));
    Py_RETURN_NONE;
}

#define OFFSET(structure, name) \
    {#structure, #name, offsetof(struct ioprof_##structure, name), sizeof(((struct ioprof_##structure *)NULL)->name)},
#define RECORD_OFFSET(type, name) OFFSET(record, name)
#define CHUNK_OFFSET(type, name) OFFSET(chunk, name)
#define FILE_HEADER_OFFSET(type, name) OFFSET(file_header, name)

static PyObject *native_layout(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    static const struct {
        const char *structure, *name;
        size_t offset, bytes;
    } members[] = {IOPROF_RECORD_FIELDS(RECORD_OFFSET) IOPROF_CHUNK_HEADER_FIELDS(CHUNK_OFFSET)
                       IOPROF_FILE_HEADER_FIELDS(FILE_HEADER_OFFSET)};
    PyObject *rows = PyList_New(0);
    for (size_t place = 0; rows != NULL && place < sizeof members / sizeof *members; place++) {
        PyObject *row = Py_BuildValue("(ssnn)", members[place].structure, members[place].name, (Py_ssize_t)members[place].offset,
                                      (Py_ssize_t)members[place].bytes);
        if (row == NULL || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

#include "observers.h"

/* In a forked child, perhaps without the GIL: nothing of Python is touched, and nothing of the parent's file. */
static void after_fork_in_child(void)
{
    mode = 0;
    observing.generation++;
    writer = (struct ioprof_writer){0};
    if (ring_is_open(&recording))
        ring_forget(&recording);
    if (ring_is_open(&rehearsal))
        ring_forget(&rehearsal);
}

#define FUNCTION(name, flags, doc) {#name, (PyCFunction)(void (*)(void))native_##name, flags, doc}
#define KEYWORDS "step=-1, batch=-1, bytes=-1, file=-1, offset=-1, stream=-1, source=0"

static PyMethodDef functions[] = {
    FUNCTION(span, METH_FASTCALL | METH_KEYWORDS,
             "span(kind, name=None, *, " KEYWORDS ")\n--\n\n"
             "A context manager that records how long its block took.\n\n"
             "kind is one of ioprof.schema.KINDS, or any other string, which names a span of your own. Inside the block, step,\n"
             "batch, bytes, file, offset, stream, source and name can be set on what the with statement gives. An exception in\n"
             "the block is recorded like any other end, and goes on. Without a recording it does nothing."),
    FUNCTION(emit, METH_FASTCALL | METH_KEYWORDS,
             "emit(kind, start_ns, end_ns, name=None, *, " KEYWORDS ")\n--\n\n"
             "Record a span that was timed elsewhere, in nanoseconds of CLOCK_MONOTONIC. ValueError: it ends before it starts."),
    FUNCTION(intern, METH_O,
             "intern(path, /)\n--\n\n"
             "What to give as file= for a path (str, bytes or os.PathLike); -1 while nothing is recorded."),
    FUNCTION(start, METH_VARARGS, "start(path, header, kinds, rehearsal=False)\n--\n\nRecord into a new file."),
    FUNCTION(stop, METH_VARARGS, "stop(rehearsal=False)\n--\n\nEnd the recording, if there is one, and mark its file closed."),
    FUNCTION(is_recording, METH_NOARGS, "is_recording()\n--\n\nWhether spans go to a file."),
    FUNCTION(lost, METH_NOARGS, "lost()\n--\n\nSpans and strings of this recording that found no room."),
    FUNCTION(redirect, METH_VARARGS,
             "redirect(span=None, emit=None, intern=None)\n--\n\nSend the three to other functions; without arguments, no longer."),
    FUNCTION(transforming, METH_O, "transforming(function, /)\n--\n\nAn observer of a function that makes new pixels of a sample's."),
    FUNCTION(loading, METH_O, "loading(function, /)\n--\n\nAn observer of the `load` of a class of Pillow's images."),
    FUNCTION(watch, METH_VARARGS,
             "watch(is_on, is_asleep, wake, /)\n--\n\nWhether observers record, and whether they call `wake` before that."),
    FUNCTION(forget, METH_NOARGS, "forget()\n--\n\nForget what threads had under way."),
    FUNCTION(makes, METH_O, "makes(number, /)\n--\n\nFrom now on what this thread observes is of the batch of that number; -1: of none."),
    FUNCTION(decoded, METH_VARARGS,
             "decoded(start_ns, end_ns, name, /)\n--\n\nRecord that this thread decoded an image, which is no part of a transform."),
    FUNCTION(layout, METH_NOARGS, "layout()\n--\n\nRows (structure, member, offset, bytes) of ring.h, for a test."),
    {NULL, NULL, 0, NULL},
};

/* State is static, so a second interpreter's import only finds what the first made; 3.12 refuses it where the GIL is not shared. */
static int execute(PyObject *Py_UNUSED(module))
{
    if (nothing != NULL)
        return 0;
    if (intern_keywords() < 0)
        return -1;
    name_attributes();
    if (prepare_observers() < 0 || PyType_Ready(&SpanType) < 0 || PyType_Ready(&NothingType) < 0 || add_nothing_functions() < 0)
        return -1;
    known_strings = PyDict_New();
    if (known_strings == NULL)
        return -1;
    if (ring_setup() != 0 || pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
        return PyErr_NoMemory() == NULL ? -1 : 0;
    nothing = PyObject_New(PyObject, &NothingType);
    return nothing == NULL ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ioprof._native",
    .m_doc = "Spans written to a capture file; see ioprof.record.span.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
