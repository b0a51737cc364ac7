/* ioprof._native: spans of CPython, written to a capture file by ring.c. The pure-Python writer is
 * ioprof/instrument/ring.py. */
#include "python_api.h"

#include "arguments.h"
#include "clock.h"
#include "collectives.h"
#include "inactive.h"
#include "labels.h"
#include "loop.h"
#include "passes.h"
#include "observers.h"
#include "span.h"
#include "state.h"
#include "step_hooks.h"
#include "steps.h"

#include <pthread.h>

static __thread struct ioprof_writer writer_before_rehearsal;

static PyObject *native_intern(PyObject *Py_UNUSED(module), PyObject *path)
{
    if (mode & REDIRECTED)
        return PyObject_Vectorcall(redirection.intern, &path, 1, NULL);
    if (!ring_is_open(&recording))
        return PyLong_FromLong(-1);
    PyObject *text = PyOS_FSPath(path);
    if (text != NULL && PyBytes_Check(text))
        IOPROF_SET_REFERENCE(
            text, PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(text), PyBytes_Size(text)));
    if (text == NULL)
        return NULL;
    int32_t id;
    int result = name_id(text, &id);
    Py_DECREF(text);
    return result < 0 ? NULL : PyLong_FromLong(id);
}

static PyObject *native_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *path, *names;
    Py_buffer header;
    int rehearse = 0;
    if (!PyArg_ParseTuple(args, "O&y*O!|p", PyUnicode_FSConverter, &path, &header, &PyTuple_Type,
                          &names, &rehearse))
        return NULL;
    struct ioprof_ring *ring = rehearse ? &rehearsal : &recording;
    int result = -1;
    if (mode & (rehearse ? REHEARSING : RECORDING))
        PyErr_SetString(PyExc_RuntimeError, "already recording");
    else if (header.len != sizeof(struct ioprof_file_header))
        PyErr_SetString(PyExc_ValueError, "header: 216 bytes");
    else if (take_kinds(names) == 0) {
        clock_setup();
        result = ring_open(ring, PyBytes_AsString(path), header.buf);
        if (result < 0)
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, PyBytes_AsString(path));
    }
    PyBuffer_Release(&header);
    Py_DECREF(path);
    if (result < 0)
        return NULL;
    if (rehearse) {
        writer_before_rehearsal = writer;
        writer = (struct ioprof_writer){.ring = &rehearsal};
    } else {
        forget_strings();
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
        forget_strings();
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
    IOPROF_SET_REFERENCE(redirection.span, Py_XNewRef(span));
    IOPROF_SET_REFERENCE(redirection.emit, Py_XNewRef(emit));
    IOPROF_SET_REFERENCE(redirection.intern, Py_XNewRef(intern));
    Py_RETURN_NONE;
}

/* In a forked child, perhaps without the GIL: nothing of Python is touched, and nothing of the
 * parent's file. */
static void after_fork_in_child(void)
{
    mode = 0;
    forget_observations();
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
             "kind is one of ioprof.format.schema.KINDS, or any other string, which names a span "
             "of your own. Inside the block, step,\n"
             "batch, bytes, file, offset, stream, source and name can be set on what the with "
             "statement gives. An exception in\n"
             "the block is recorded like any other end, and goes on. Without a recording it does "
             "nothing."),
    FUNCTION(emit, METH_FASTCALL | METH_KEYWORDS,
             "emit(kind, start_ns, end_ns, name=None, *, " KEYWORDS ")\n--\n\n"
             "Record a span that was timed elsewhere, in nanoseconds of CLOCK_MONOTONIC. "
             "ValueError: it ends before it starts."),
    FUNCTION(intern, METH_O,
             "intern(path, /)\n--\n\n"
             "What to give as file= for a path (str, bytes or os.PathLike); -1 while nothing is "
             "recorded."),
    FUNCTION(start, METH_VARARGS,
             "start(path, header, kinds, rehearsal=False)\n--\n\nRecord into a new file."),
    FUNCTION(stop, METH_VARARGS,
             "stop(rehearsal=False)\n--\n\nEnd the recording, if there is one, and mark its file "
             "closed."),
    FUNCTION(is_recording, METH_NOARGS, "is_recording()\n--\n\nWhether spans go to a file."),
    FUNCTION(lost, METH_NOARGS,
             "lost()\n--\n\nSpans and strings of this recording that could not be stored."),
    FUNCTION(redirect, METH_VARARGS,
             "redirect(span=None, emit=None, intern=None)\n--\n\nUse other functions in place of "
             "the three; without arguments, no longer."),
    FUNCTION(transforming, METH_VARARGS,
             "transforming(function, name=None, /)\n--\n\nAn observer of a function that "
             "transforms a sample."),
    FUNCTION(operating, METH_VARARGS,
             "operating(function, is_alone, /)\n--\n\n"
             "An observer of a method that is an operation of a pipeline: its spans have the name "
             "of the object's class. is_alone:\n"
             "also outside of pipelines."),
    FUNCTION(
        loading, METH_O,
        "loading(function, /)\n--\n\nAn observer of the `load` of a class of Pillow's images."),
    FUNCTION(follow, METH_VARARGS,
             "follow(hooks, steps, /)\n--\n\nObservers of steps ask this HookState and its Steps, "
             "and tell them."),
    FUNCTION(calling, METH_O,
             "calling(function, /)\n--\n\nAn observer of the call of a module: an outermost one is "
             "a forward pass."),
    FUNCTION(
        propagating, METH_O,
        "propagating(function, /)\n--\n\nAn observer of a function that makes a backward pass."),
    FUNCTION(exchanging, METH_VARARGS,
             "exchanging(function, name, /)\n--\n\nAn observer of a collective; its spans have "
             "that name."),
    FUNCTION(awaiting, METH_O,
             "awaiting(function, /)\n--\n\nAn observer of the `wait` of what a collective in "
             "progress returned."),
    FUNCTION(
        expect, METH_VARARGS,
        "expect(work, known, /)\n--\n\nThe wait for `work` will end a collective (start_ns, name, "
        "step, bytes), or what `known` then records, called with the start of the wait."),
    FUNCTION(numbered, METH_VARARGS,
             "numbered(name, step, /)\n--\n\nThe name, with a number if there was one of that name "
             "in this step before."),
    FUNCTION(begin_step, METH_O,
             "begin_step(optimizer, /)\n--\n\nAn optimizer is about to make a step. True: it is "
             "observed, and not part of another's."),
    FUNCTION(end_step, METH_O, "end_step(optimizer, /)\n--\n\nIt has made it."),
    FUNCTION(fetches, METH_O,
             "fetches(is_fetching, /)\n--\n\nWhether this thread now fetches a batch: calls of "
             "modules are then not observed."),
    FUNCTION(decoding, METH_VARARGS,
             "decoding(function, name, /)\n--\n\nAn observer of a function that decodes; its spans "
             "have that name."),
    FUNCTION(decoding_items, METH_VARARGS,
             "decoding_items(function, name, /)\n--\n\nAn observer of a function that returns an "
             "iterator, whose next() decodes."),
    FUNCTION(
        type_modified, METH_O,
        "type_modified(type, /)\n--\n\nTell the interpreter that a type's dictionary was changed."),
    FUNCTION(watch, METH_VARARGS,
             "watch(is_on, is_asleep, wake, /)\n--\n\nWhether observers record, and whether they "
             "call `wake` before that."),
    FUNCTION(forget, METH_NOARGS, "forget()\n--\n\nForget what threads had under way."),
    FUNCTION(hooks_ns, METH_NOARGS,
             "hooks_ns()\n--\n\nWhat hooks of training steps have taken in this process, "
             "estimated from those of which the time was taken."),
    FUNCTION(makes, METH_O,
             "makes(number, /)\n--\n\nFrom now on what this thread observes is of the batch of "
             "that number; -1: of none."),
    FUNCTION(decoded, METH_VARARGS,
             "decoded(start_ns, end_ns, name, /)\n--\n\nRecord that this thread decoded an image, "
             "which is no part of a transform."),
    FUNCTION(interrupted, METH_VARARGS,
             "interrupted(start_ns, end_ns, /)\n--\n\nWhat this thread did meanwhile is no part of "
             "a transform that is in progress."),
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    return PyModule_AddObjectRef(module, "Loop", loop_type) < 0 ||
                   PyModule_AddObjectRef(module, "PassNumbers", passes_type) < 0
               ? -1
               : PyModule_AddObjectRef(module, "StepNumbers", steps_type);
}

/* State is static, so that a second interpreter shares that of the first; 3.12 refuses the import
 * where the GIL is not shared. */
static int execute(PyObject *module)
{
    if (inactive_span != NULL)
        return add_types(module);
    if (intern_keywords() < 0 || prepare_strings() < 0 || prepare_observers() < 0 ||
        prepare_spans() < 0)
        return -1;
    if (ring_setup() != 0 || pthread_atfork(NULL, NULL, after_fork_in_child) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    return prepare_inactive_span() < 0 ? -1 : add_types(module);
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
    .m_doc = "Spans written to a capture file; see ioprof.instrument.span.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
