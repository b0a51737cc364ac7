#include "labels.h"

#include "state.h"

#define MAX_KINDS 254

/* Known strings are forgotten when there are this many: 1.28 million paths, held by every worker of
 * a node, would take too much memory for a profiler. A string that comes again is then written
 * again, and the reader merges the two. */
#define MAX_KNOWN_STRINGS (1 << 17)

static PyObject *known_strings;    /* str -> number in `recording` */
static PyObject *kinds[MAX_KINDS]; /* interned; the index plus one is the kind's number */
static int num_kinds;
struct kind user_kind = {"user", 0}, transform_kind = {"transform", 0}, decode_kind = {"decode", 0},
            compute_kind = {"compute", 0}, step_kind = {"step", 0}, comm_kind = {"comm", 0};

/* ------------------------------------------------------------------------------------- strings */

int prepare_strings(void)
{
    known_strings = PyDict_New();
    return known_strings == NULL ? -1 : 0;
}

void forget_strings(void)
{
    PyDict_Clear(known_strings);
}

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
    *id = ring_string(&recording, &writer, PyBytes_AsString(data), (size_t)PyBytes_Size(data));
    Py_DECREF(data);
    if (*id < 0)
        return 0;
    if (PyDict_Size(known_strings) >= MAX_KNOWN_STRINGS)
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

/* Raises a TypeError that names the type of `value`; returns -1. */
static int refuse_type(const char *message, PyObject *value)
{
    PyObject *name = PyType_GetName(Py_TYPE(value));
    if (name != NULL)
        PyErr_Format(PyExc_TypeError, message, name);
    Py_XDECREF(name);
    return -1;
}

int name_id(PyObject *name, int32_t *id)
{
    if (PyUnicode_CheckExact(name))
        return string_id(name, id);
    if (!PyUnicode_Check(name)) {
        return refuse_type("a span's name is a str, not %U", name);
    }
    PyObject *plain = PyUnicode_FromObject(name); /* a subclass may have any hash and equality */
    int result = plain == NULL ? -1 : string_id(plain, id);
    Py_XDECREF(plain);
    return result;
}

int32_t label_id(struct label *label)
{
    const uint32_t generation = atomic_load_explicit(&recording.generation, memory_order_relaxed);
    if (current_ring() != &recording)
        return -1;
    if (label->generation != generation) {
        if (name_id(label->text, &label->id) < 0)
            return -1;
        label->generation = generation;
    }
    return label->id;
}

/* --------------------------------------------------------------------------------------- kinds */

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

int take_kinds(PyObject *names)
{
    if (PyTuple_Size(names) < 1 || PyTuple_Size(names) > MAX_KINDS) {
        PyErr_SetString(PyExc_ValueError, "kinds: between 1 and 254");
        return -1;
    }
    forget_kinds();
    for (Py_ssize_t place = 0; place < PyTuple_Size(names); place++) {
        PyObject *name = PyTuple_GetItem(names, place);
        if (!PyUnicode_CheckExact(name)) {
            PyErr_SetString(PyExc_TypeError, "kinds: strings");
            return -1;
        }
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        kinds[num_kinds++] = name;
    }
    find_number(&user_kind);
    if (user_kind.number == 0)
        user_kind.number = num_kinds;
    find_number(&transform_kind);
    find_number(&decode_kind);
    find_number(&compute_kind);
    find_number(&step_kind);
    find_number(&comm_kind);
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

int set_label(struct ioprof_record *record, PyObject *kind, PyObject *name, PyObject **shown)
{
    if (!PyUnicode_Check(kind)) {
        return refuse_type("a span's kind is a str, not %U", kind);
    }
    *shown = name == NULL || name == Py_None ? NULL : Py_NewRef(name);
    int number = kind_number(kind);
    record->kind = (uint8_t)(number ? number : user_kind.number);
    if (number == 0) {
        PyObject *label =
            *shown == NULL ? Py_NewRef(kind) : PyUnicode_FromFormat("%U %S", kind, *shown);
        IOPROF_SET_REFERENCE(*shown, label);
        if (label == NULL)
            return -1;
    }
    if (*shown == NULL || name_id(*shown, &record->name) == 0)
        return 0;
    Py_CLEAR(*shown);
    return -1;
}
