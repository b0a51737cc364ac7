#include "loop.h"

#include "clock.h"
#include "observers.h"
#include "observing.h"

#include <stddef.h>

/* Of compute.py, where the reasons are. */
#define SMALL_SHARE 0.05
enum { SMALL_NS = 50000, MAX_GAPS = 1024 };

PyObject *loop_type;
struct label backward_name;
static struct label forward_name, inference_name, loss_name, gradients_name, optimizer_name;

/* ------------------------------------------------------------------------------------- watches */

static int ask(const struct watch *watch, const char *name, bool *answer)
{
    PyObject *value = PyObject_GetAttrString(watch->object, name);
    const int is_true = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    *answer = is_true > 0;
    return is_true < 0 ? -1 : 0;
}

static int refresh(struct watch *watch, PyObject *result)
{
    if (result == NULL)
        return -1;
    Py_DECREF(result);
    return ask(watch, "is_on", &watch->is_on) | ask(watch, "wanted", &watch->is_wanted) |
           ask(watch, "is_computation", &watch->is_computation);
}

/* `now_ns` is 0 where what was seen does not count. */
static int end_watch(struct watch *watch, int64_t now_ns)
{
    if (!watch->is_on)
        return 0;
    return refresh(watch, now_ns == 0
                              ? PyObject_CallMethod(watch->object, "end", "O", Py_None)
                              : PyObject_CallMethod(watch->object, "end", "L", (long long)now_ns));
}

static int begin_watch(struct watch *watch)
{
    return refresh(watch, PyObject_CallMethod(watch->object, "begin", NULL));
}

/* A watch says how many of these times it need not be told of. */
static int count_watch(struct watch *watch)
{
    if (watch->num_untold < watch->num_quiet) {
        watch->num_untold++;
        return 0;
    }
    PyObject *quiet =
        PyObject_CallMethod(watch->object, "count", "L", (long long)watch->num_untold + 1);
    watch->num_untold = 0;
    watch->num_quiet = quiet == NULL ? 0 : PyLong_AsLongLong(quiet);
    return refresh(watch, quiet);
}

/* ------------------------------------------------------------------------------------ the loop */

static void emit_compute(int64_t start_ns, int64_t end_ns, struct label *name, int64_t step)
{
    write_step_span(&compute_kind, start_ns, end_ns, name, step, -1);
}

static bool is_small(const Loop *loop, int64_t now_ns)
{
    const int64_t share_ns =
        (int64_t)(SMALL_SHARE * (double)(loop->pending_end_ns - loop->pending_start_ns));
    return now_ns - loop->pending_end_ns <= (share_ns > SMALL_NS ? share_ns : SMALL_NS);
}

static struct label *name_of_pass(bool is_inference)
{
    return is_inference ? &inference_name : &forward_name;
}

static int emit_pending(Loop *loop)
{
    const int result = end_watch(&loop->loss, 0);
    if (loop->is_pending) {
        loop->is_pending = false;
        emit_compute(loop->pending_start_ns, loop->pending_end_ns,
                     name_of_pass(loop->pending_is_inference), loop->pending_step);
    }
    return result;
}

static int append_gap(struct gaps *gaps, int64_t start_ns, int64_t end_ns)
{
    if (gaps->num == MAX_GAPS)
        return 0;
    if (gaps->num == gaps->room) {
        const int room = gaps->room == 0 ? 8 : 2 * gaps->room;
        struct gap *all = PyMem_Realloc(gaps->all, (size_t)room * sizeof *all);
        if (all == NULL)
            return 0;
        gaps->all = all;
        gaps->room = room;
    }
    gaps->all[gaps->num++] = (struct gap){start_ns, end_ns};
    return 0;
}

static int append_backward_gap(PyObject *gaps, int64_t start_ns, int64_t end_ns)
{
    if (PyList_Size(gaps) >= MAX_GAPS)
        return 0;
    PyObject *gap = Py_BuildValue("(LL)", (long long)start_ns, (long long)end_ns);
    const int result = gap == NULL ? -1 : PyList_Append(gaps, gap);
    Py_XDECREF(gap);
    return result;
}

void emit_without_gaps(int64_t begin_ns, int64_t end_ns, const struct gaps *gaps,
                       struct label *name, int64_t step)
{
    for (int place = 0; place < gaps->num; place++) {
        const struct gap gap = gaps->all[place];
        if (gap.end_ns <= begin_ns || gap.start_ns >= end_ns)
            continue;
        if (begin_ns < gap.start_ns)
            emit_compute(begin_ns, gap.start_ns, name, step);
        if (gap.end_ns > begin_ns)
            begin_ns = gap.end_ns;
    }
    if (begin_ns < end_ns)
        emit_compute(begin_ns, end_ns, name, step);
}

int loop_begin_forward(Loop *loop, int64_t now_ns, int64_t step, bool is_inference)
{
    end_core_wait(&loop->cores, now_ns);
    int result = end_watch(&loop->loss, 0);
    result |= end_watch(&loop->clipping, 0);
    if (loop->is_pending && step == loop->pending_step &&
        is_inference == loop->pending_is_inference && is_small(loop, now_ns)) {
        now_ns = loop->pending_start_ns;
        loop->is_pending = false;
    } else if (loop->is_pending) {
        result |= emit_pending(loop);
    }
    loop->forward_begin_ns = now_ns;
    loop->step = step;
    loop->is_inference = is_inference;
    loop->backward_end_ns = 0;
    return result;
}

int loop_end_forward(Loop *loop, int64_t now_ns)
{
    begin_core_wait(&loop->cores, AFTER_FORWARD, now_ns);
    int result = loop->is_pending ? emit_pending(loop) : 0;
    loop->pending_start_ns = loop->forward_begin_ns;
    loop->pending_end_ns = now_ns;
    loop->pending_step = loop->step;
    loop->pending_is_inference = loop->is_inference;
    loop->is_pending = true;
    loop->forward_begin_ns = 0;
    if (loop->loss.is_wanted)
        result |= begin_watch(&loop->loss);
    return result;
}

int loop_begin_backward(Loop *loop, int64_t now_ns)
{
    end_core_wait(&loop->cores, now_ns);
    loop->backward_begin_ns = now_ns;
    int result = end_watch(&loop->clipping, 0);
    result |= end_watch(&loop->loss, now_ns);
    if (!loop->is_pending)
        return result;
    const int64_t end_ns = loop->pending_end_ns, step = loop->pending_step;
    if (is_small(loop, now_ns)) {
        loop->pending_end_ns = now_ns;
        return result | emit_pending(loop);
    }
    result |= count_watch(&loop->loss);
    result |= emit_pending(loop);
    if (loop->loss.is_computation)
        emit_compute(end_ns, now_ns, &loss_name, step);
    return result;
}

int loop_end_backward(Loop *loop, int64_t now_ns)
{
    loop->backward_end_ns = now_ns;
    loop->gaps.num = 0;
    return loop->clipping.is_wanted && !loop->loss.is_on ? begin_watch(&loop->clipping) : 0;
}

static int end_computation(Loop *loop)
{
    int result = end_watch(&loop->loss, 0);
    result |= end_watch(&loop->clipping, 0);
    if (loop->is_pending)
        result |= emit_pending(loop);
    loop->backward_end_ns = 0;
    return result;
}

/* The optimizer's step begins while the time before it is observed in detail. */
static int end_clipping(Loop *loop, int64_t now_ns)
{
    return end_watch(&loop->clipping,
                     loop->gaps.num > 0 || loop->backward_end_ns == 0 ? 0 : now_ns);
}

int loop_add_gap(Loop *loop, int64_t start_ns, int64_t end_ns)
{
    if (loop->nested > 0)
        return append_backward_gap(loop->backward_gaps, start_ns, end_ns);
    if (loop->forward_begin_ns != 0) {
        if (loop->forward_begin_ns < start_ns)
            emit_compute(loop->forward_begin_ns, start_ns, name_of_pass(loop->is_inference),
                         loop->step);
        loop->forward_begin_ns = end_ns;
        return 0;
    }
    if (loop->is_pending)
        return emit_pending(loop);
    return loop->backward_end_ns != 0 ? append_gap(&loop->gaps, start_ns, end_ns) : 0;
}

static int emit_since_backward(Loop *loop, int64_t end_ns, int64_t step)
{
    if (loop->backward_end_ns == 0)
        return 0;
    int64_t took_ns = end_ns - loop->backward_end_ns;
    for (int place = 0; place < loop->gaps.num; place++)
        took_ns -= loop->gaps.all[place].end_ns - loop->gaps.all[place].start_ns;
    const int64_t share_ns =
        (int64_t)(SMALL_SHARE * (double)(loop->backward_end_ns - loop->backward_begin_ns));
    const bool is_short = took_ns <= (share_ns > SMALL_NS ? share_ns : SMALL_NS);
    int result = 0;
    /* else the one before is still to be observed: the loss was, meanwhile */
    if (!is_short && !loop->clipping.is_wanted)
        result = count_watch(&loop->clipping);
    if (is_short || loop->clipping.is_computation)
        emit_without_gaps(loop->backward_end_ns, end_ns, &loop->gaps,
                          is_short ? &optimizer_name : &gradients_name, step);
    return result;
}

int loop_begin_step(Loop *loop, const void *optimizer, int64_t now_ns)
{
    int result = end_watch(&loop->loss, 0), kept = 0;
    if (loop->clipping.is_on)
        result |= end_clipping(loop, now_ns);
    for (int place = 0; place < loop->num_optimizers; place++)
        if (loop->optimizers[place].which != optimizer)
            loop->optimizers[kept++] = loop->optimizers[place];
    if (kept == MAX_OPTIMIZERS)
        kept--;
    loop->optimizers[kept].which = optimizer;
    loop->optimizers[kept].start_ns = now_ns;
    loop->num_optimizers = kept + 1;
    if (kept == 0)
        loop->closures.num = 0;
    return result;
}

int loop_end_step(Loop *loop, int64_t start_ns, int64_t end_ns, int64_t step, bool on_cpu)
{
    int result = 0;
    if (on_cpu) {
        begin_core_wait(&loop->cores, AFTER_STEP, end_ns);
        result |= emit_since_backward(loop, start_ns, step);
        emit_without_gaps(start_ns, end_ns, &loop->closures, &optimizer_name, step);
        if (loop->forward_begin_ns != 0)
            result |= loop_add_gap(loop, start_ns, end_ns);
    }
    return result | end_computation(loop);
}

/* --------------------------------------------------------------------------- as Python sees it */

static PyObject *none_or_error(int result)
{
    return result == 0 ? Py_NewRef(Py_None) : NULL;
}

static int take_numbers(PyObject *const *args, Py_ssize_t num_args, int64_t *numbers,
                        Py_ssize_t wanted)
{
    if (num_args != wanted) {
        PyErr_Format(PyExc_TypeError, "takes %zd numbers (%zd given)", wanted, num_args);
        return -1;
    }
    for (Py_ssize_t place = 0; place < wanted; place++)
        numbers[place] = PyLong_AsLongLong(args[place]);
    return PyErr_Occurred() ? -1 : 0;
}

#define METHOD(name, wanted, call)                                                             \
    static PyObject *method_##name(PyObject *self, PyObject *const *args, Py_ssize_t num_args) \
    {                                                                                          \
        Loop *loop = (Loop *)self;                                                             \
        int64_t numbers[(wanted) + 1];                                                         \
        return take_numbers(args, num_args, numbers, wanted) < 0 ? NULL : none_or_error(call); \
    }

static int end_wait(Loop *loop, int64_t start_ns, int64_t end_ns)
{
    int result = 0;
    if (loop->nested > 0 || loop->forward_begin_ns != 0 || loop->is_pending) {
        result |= loop_add_gap(loop, start_ns, end_ns);
        if (loop->is_pending)
            result |= emit_pending(loop);
    }
    result |= end_watch(&loop->clipping, 0);
    loop->backward_end_ns = 0;
    return result;
}

static int end_closure(Loop *loop, int64_t start_ns, int64_t end_ns, int64_t step)
{
    int result = loop->clipping.is_on ? end_clipping(loop, end_ns) : 0;
    result |= emit_since_backward(loop, end_ns, step);
    result |= end_computation(loop);
    return result | append_gap(&loop->closures, start_ns, end_ns);
}

/* Without a computation on the CPU since the last wait, a device may have computed meanwhile. */
static int begin_wait(Loop *loop)
{
    if (loop->cores.place == AFTER_WAIT)
        loop->cores.begin_ns = 0;
    else if (loop->cores.begin_ns != 0)
        end_core_wait(&loop->cores, clock_now());
    return 0;
}

static int have_batch(Loop *loop)
{
    begin_core_wait(&loop->cores, AFTER_WAIT, clock_now());
    return 0;
}

METHOD(begin_forward, 3, loop_begin_forward(loop, numbers[0], numbers[1], numbers[2] != 0))
METHOD(end_forward, 1, loop_end_forward(loop, numbers[0]))
METHOD(begin_backward, 1, loop_begin_backward(loop, numbers[0]))
METHOD(end_backward, 1, loop_end_backward(loop, numbers[0]))
METHOD(emit_pending, 0, emit_pending(loop))
METHOD(end_computation, 0, end_computation(loop))
METHOD(begin_wait, 0, begin_wait(loop))
METHOD(have_batch, 0, have_batch(loop))
METHOD(end_wait, 2, end_wait(loop, numbers[0], numbers[1]))
METHOD(end_closure, 3, end_closure(loop, numbers[0], numbers[1], numbers[2]))
METHOD(add_gap, 2, loop_add_gap(loop, numbers[0], numbers[1]))
METHOD(begin_step, 2, loop_begin_step(loop, (const void *)(uintptr_t)numbers[0], numbers[1]))

static PyObject *method_end_step(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    Loop *loop = (Loop *)self;
    int64_t numbers[4];
    if (take_numbers(args, num_args, numbers, 4) < 0)
        return NULL;
    return none_or_error(loop_end_step(loop, numbers[0], numbers[1], numbers[2], numbers[3] != 0));
}

#define ENTRY(name, doc) {#name, (PyCFunction)(void (*)(void))method_##name, METH_FASTCALL, doc}

static PyMethodDef loop_methods[] = {
    ENTRY(begin_forward, "begin_forward(now_ns, step, /)"),
    ENTRY(end_forward, "end_forward(now_ns, /)"),
    ENTRY(begin_backward, "begin_backward(now_ns, /)"),
    ENTRY(end_backward, "end_backward(now_ns, /)"),
    ENTRY(emit_pending, "emit_pending()"),
    ENTRY(end_computation, "end_computation()"),
    ENTRY(begin_wait, "begin_wait()"),
    ENTRY(have_batch, "have_batch()"),
    ENTRY(end_wait, "end_wait(start_ns, end_ns, /)"),
    ENTRY(end_closure, "end_closure(start_ns, end_ns, step, /)"),
    ENTRY(add_gap, "add_gap(start_ns, end_ns, /)"),
    ENTRY(begin_step, "begin_step(optimizer_id, now_ns, /)"),
    ENTRY(end_step, "end_step(start_ns, end_ns, step, on_cpu, /)"),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef loop_members[] = {
    {"forward_begin_ns", T_LONGLONG, offsetof(Loop, forward_begin_ns), READONLY, NULL},
    {"nested", T_LONGLONG, offsetof(Loop, nested), 0, NULL},
    {"in_collective", T_BOOL, offsetof(Loop, in_collective), 0, NULL},
    {"backward_gaps", T_OBJECT, offsetof(Loop, backward_gaps), READONLY, NULL},
    {"evaluation", T_OBJECT, offsetof(Loop, evaluation), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Loop, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    PyObject *loss, *clipping, *evaluation;
    if (!PyArg_ParseTuple(args, "OOO!", &loss, &clipping, passes_type, &evaluation))
        return NULL;
    const allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Loop *loop = (Loop *)allocate(type, 0);
    if (loop == NULL)
        return NULL;
    loop->step = -1;
    loop->loss.object = Py_NewRef(loss);
    loop->clipping.object = Py_NewRef(clipping);
    loop->evaluation = (Passes *)Py_NewRef(evaluation);
    loop->backward_gaps = PyList_New(0);
    if (loop->backward_gaps == NULL) {
        Py_DECREF(loop);
        return NULL;
    }
    struct thread_state *state = get_thread_state();
    loop->home = state;
    state->loop = (PyObject *)loop;
    return (PyObject *)loop;
}

static int loop_traverse(PyObject *self, visitproc visit, void *arg)
{
    Loop *loop = (Loop *)self;
    Py_VISIT(loop->loss.object);
    Py_VISIT(loop->clipping.object);
    Py_VISIT(loop->evaluation);
    Py_VISIT(loop->backward_gaps);
    Py_VISIT(loop->stepped_type);
    for (int place = 0; place < NUM_KNOWN; place++)
        Py_VISIT(loop->models[place].reference);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

/* Its thread holds it as the loop of its calls, without a reference. It is freed there, as a rule;
 * where another thread frees it, that state may be gone, and what all threads have under way is
 * forgotten instead. */
static void loop_dealloc(PyObject *self)
{
    Loop *loop = (Loop *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    if (loop->home == &thread_state && thread_state.loop == self)
        thread_state.loop = NULL;
    else if (loop->home != NULL && loop->home != &thread_state)
        forget_observations();
    Py_CLEAR(loop->loss.object);
    Py_CLEAR(loop->clipping.object);
    Py_CLEAR(loop->evaluation);
    Py_CLEAR(loop->backward_gaps);
    Py_CLEAR(loop->stepped_type);
    for (int place = 0; place < NUM_KNOWN; place++)
        Py_CLEAR(loop->models[place].reference);
    PyMem_Free(loop->gaps.all);
    PyMem_Free(loop->closures.all);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot loop_slots[] = {
    {Py_tp_new, loop_new},         {Py_tp_traverse, loop_traverse}, {Py_tp_dealloc, loop_dealloc},
    {Py_tp_methods, loop_methods}, {Py_tp_members, loop_members},   {0, NULL},
};

static PyType_Spec loop_specification = {
    .name = "ioprof._native.Loop",
    .basicsize = sizeof(Loop),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = loop_slots,
};

int prepare_loops(void)
{
    forward_name.text = PyUnicode_InternFromString("forward");
    inference_name.text = PyUnicode_InternFromString("inference");
    loss_name.text = PyUnicode_InternFromString("loss");
    backward_name.text = PyUnicode_InternFromString("backward");
    gradients_name.text = PyUnicode_InternFromString("gradients");
    optimizer_name.text = PyUnicode_InternFromString("optimizer");
    loop_type = PyType_FromSpec(&loop_specification);
    return forward_name.text == NULL || inference_name.text == NULL || loss_name.text == NULL ||
                   backward_name.text == NULL || gradients_name.text == NULL ||
                   optimizer_name.text == NULL || loop_type == NULL || prepare_core_waits() < 0
               ? -1
               : 0;
}
