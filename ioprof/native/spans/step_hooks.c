#include "step_hooks.h"

#include "clock.h"
#include "loop.h"
#include "steps.h"

/* Attributes that are asked for in each step. */
#define NAMES(each)                                                                              \
    each(_modules) each(_parameters) each(current) each(device) each(gradients) each(has_models) \
        each(identity) each(is_cpu) each(is_grad_enabled) each(loop) each(param_groups)          \
            each(params) each(per_thread) each(requires_grad) each(role) each(tensors)           \
                each(Tensor) each(training) each(type) each(validates)
#define DECLARE(name) *name_##name,
static PyObject NAMES(DECLARE) * torch;

static int intern(PyObject **place, const char *text)
{
    *place = PyUnicode_InternFromString(text);
    return *place == NULL ? -1 : 0;
}

int prepare_step_hooks(void)
{
#define INTERN(name) | intern(&name_##name, #name)
    return 0 NAMES(INTERN);
}

/* ---------------------------------------------------------------------- reading Python objects */

static bool is_set(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    const bool result = value != NULL && PyObject_IsTrue(value) > 0;
    Py_XDECREF(value);
    return result;
}

static bool has_role(const char *role)
{
    PyObject *identity = PyObject_GetAttr(observing.hooks, name_identity);
    PyObject *value = identity == NULL ? NULL : PyObject_GetAttr(identity, name_role);
    const bool result = value != NULL && PyUnicode_Check(value) &&
                        PyUnicode_CompareWithASCIIString(value, role) == 0;
    Py_XDECREF(value);
    Py_XDECREF(identity);
    return result;
}

/* Whether this process is a worker of a loader, whose modules transform samples. */
static bool is_worker(Loop *loop, int64_t now_ns)
{
    if (now_ns >= loop->role_until_ns) {
        loop->is_worker = has_role("worker");
        loop->role_until_ns = now_ns + LOOK_AGAIN_NS;
    }
    return loop->is_worker;
}

Loop *current_loop(struct thread_state *state)
{
    if (state->loop != NULL)
        return (Loop *)state->loop;
    PyObject *threads = PyObject_GetAttr(observing.hooks, name_per_thread);
    PyObject *current = threads == NULL ? NULL : PyObject_GetAttr(threads, name_current);
    PyObject *loop = current == NULL ? NULL : PyObject_GetAttr(current, name_loop);
    if (loop != NULL && Py_TYPE(loop) == (PyTypeObject *)loop_type) {
        ((Loop *)loop)->home = state;
        state->loop = loop;
    }
    Py_XDECREF(threads);
    Py_XDECREF(current);
    Py_XDECREF(loop); /* the thread's state holds it */
    return (Loop *)state->loop;
}

/* `device` makes two objects at each call, so `is_cpu` is asked first; a tensor
 * whose device is not that of its memory, as torch's fake tensors, is not `is_cpu`, but may say
 * that its device is. */
enum place place_of(PyObject *tensor)
{
    PyObject *value = PyObject_GetAttr(tensor, name_is_cpu);
    if (value == NULL)
        drop_exception();
    Py_XDECREF(value);
    if (value == Py_True)
        return ON_CPU;
    PyObject *device = PyObject_GetAttr(tensor, name_device);
    PyObject *type = device == NULL ? NULL : PyObject_GetAttr(device, name_type);
    if (type == NULL)
        drop_exception();
    const enum place place =
        type == NULL || type == Py_None                                               ? NOWHERE
        : PyUnicode_Check(type) && PyUnicode_CompareWithASCIIString(type, "cpu") == 0 ? ON_CPU
                                                                                      : ELSEWHERE;
    Py_XDECREF(device);
    Py_XDECREF(type);
    return place;
}

/* The same of the first of a sequence. */
static enum place place_of_first(PyObject *value)
{
    if (PyList_Check(value))
        return PyList_Size(value) > 0 ? place_of(PyList_GetItem(value, 0)) : NOWHERE;
    if (PyTuple_Check(value))
        return PyTuple_Size(value) > 0 ? place_of(PyTuple_GetItem(value, 0)) : NOWHERE;
    return place_of(value);
}

/* The values of a module's `_parameters` or `_modules`; NULL: an exception is set. */
static PyObject *values_of(PyObject *module, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(module, name);
    PyObject *values = found == NULL ? NULL : PyMapping_Values(found);
    Py_XDECREF(found);
    return values;
}

/* A new reference to the first parameter of a module or of what it contains; NULL, perhaps with an
 * exception: there is none. `parameters()` may be the user's, and is not called. */
static PyObject *first_parameter(PyObject *module)
{
    PyObject *found = NULL, *parameters = values_of(module, name__parameters);
    for (Py_ssize_t place = 0;
         parameters != NULL && found == NULL && place < PyList_Size(parameters); place++)
        if (PyList_GetItem(parameters, place) != Py_None)
            found = Py_NewRef(PyList_GetItem(parameters, place));
    Py_XDECREF(parameters);
    if (parameters == NULL || found != NULL)
        return found;
    PyObject *children = values_of(module, name__modules);
    for (Py_ssize_t place = 0;
         children != NULL && found == NULL && !PyErr_Occurred() && place < PyList_Size(children);
         place++)
        if (PyList_GetItem(children, place) != Py_None)
            found = first_parameter(PyList_GetItem(children, place));
    Py_XDECREF(children);
    return found;
}

static PyObject *find_torch(void)
{
    if (torch == NULL) {
        PyObject *modules = PyImport_GetModuleDict();
        torch = Py_XNewRef(PyDict_GetItemString(modules, "torch"));
    }
    return torch;
}

static bool wants_gradients(void)
{
    static PyObject *function;
    if (function == NULL && find_torch() != NULL)
        function = PyObject_GetAttr(torch, name_is_grad_enabled);
    PyObject *result = function == NULL ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(result);
    return result == Py_True;
}

/* ------------------------------------------------------------------------------------- modules */

/* Where the parameters of a module are; NOWHERE: it has none, or an exception is set. */
static enum place place_of_model(Loop *loop, PyObject *model, int64_t now_ns)
{
    for (int place = 0; place < NUM_KNOWN; place++) {
        const struct known_model *known = &loop->models[place];
        if (now_ns < known->until_ns && ioprof_referent(known->reference) == model)
            return known->place;
    }
    PyObject *parameter = first_parameter(model);
    const enum place place = parameter == NULL ? NOWHERE : place_of(parameter);
    Py_XDECREF(parameter);
    if (PyErr_Occurred())
        return NOWHERE;
    PyObject *reference = PyWeakref_NewRef(model, NULL);
    if (reference == NULL) {
        drop_exception();
    } else {
        struct known_model *known = &loop->models[loop->next_model];
        loop->next_model = (loop->next_model + 1) % NUM_KNOWN;
        PyObject *before = known->reference;
        *known = (struct known_model){reference, now_ns + LOOK_AGAIN_NS, place};
        Py_XDECREF(before);
    }
    return place;
}

/* Where the arguments that require a gradient are, as those of a loss do. */
static enum place place_of_arguments(PyObject *const *args, Py_ssize_t num_args)
{
    PyObject *kind = find_torch() == NULL ? NULL : PyObject_GetAttr(torch, name_Tensor);
    enum place place = NOWHERE;
    for (Py_ssize_t each = 1;
         kind != NULL && place == NOWHERE && each < num_args && !PyErr_Occurred(); each++)
        if (PyObject_IsInstance(args[each], kind) > 0 && is_set(args[each], name_requires_grad))
            place = place_of(args[each]);
    Py_XDECREF(kind);
    return place;
}

static PyObject *arguments_after(PyObject *const *args, Py_ssize_t num_args)
{
    PyObject *values = PyTuple_New(num_args - 1);
    for (Py_ssize_t place = 1; values != NULL && place < num_args; place++)
        PyTuple_SetItem(values, place - 1, Py_NewRef(args[place]));
    return values;
}

static void drop_result(PyObject *result)
{
    Py_XDECREF(result);
}

static void end_evaluation(Passes *evaluation, const Steps *steps, int64_t now_ns)
{
    if (steps->trains && passes_are_known(evaluation))
        drop_result(PyObject_CallMethod((PyObject *)evaluation, "end", "LLO", (long long)now_ns,
                                        (long long)steps->number, Py_True));
    else
        passes_end(evaluation, steps->number);
}

/* What a model does that is called: without gradients in evaluation mode, or in training mode once
 * steps were made. */
enum purpose { TRAINS, EVALUATES, MINES };

/* A model and the arguments of its call are shown to a method of an Evaluation. */
static void show(Passes *evaluation, const char *method, PyObject *const *args, Py_ssize_t num_args)
{
    PyObject *values = PyErr_Occurred() ? NULL : arguments_after(args, num_args);
    if (values != NULL)
        drop_result(PyObject_CallMethod((PyObject *)evaluation, method, "OO", args[0], values));
    Py_XDECREF(values);
}

/* What the model does is noted. What a library says to be a validation is known already. */
static enum purpose note_mode(Passes *evaluation, const Steps *steps, bool trains,
                              PyObject *const *args, Py_ssize_t num_args)
{
    /* as nearly always: it trains the model that it trained before, or calls one in training mode
     * for something else */
    if (trains && evaluation->num_passes == 0 && passes_know(evaluation, args[0]))
        return TRAINS;
    PyObject *mode = PyObject_GetAttr(args[0], name_training);
    if (mode == NULL)
        drop_exception();
    const bool is_training = mode == NULL || PyObject_IsTrue(mode) > 0;
    Py_XDECREF(mode);
    if ((!trains && is_training && !steps->trains) || is_set(observing.hooks, name_validates))
        return TRAINS;
    if (trains && evaluation->num_passes != 0)
        end_evaluation(evaluation, steps, clock_now());
    if (trains && !is_training)
        return TRAINS;
    if (trains ? !passes_train(evaluation, args[0])
               : passes_begin(evaluation, args[0], clock_now(), steps->number))
        show(evaluation, trains ? "train" : "look", args, num_args);
    return trains ? TRAINS : is_training ? MINES : EVALUATES;
}

static bool begin_pass(Loop *loop, const Steps *steps, PyObject *const *args, Py_ssize_t num_args)
{
    const int64_t now_ns = clock_now();
    if (loop->nested > 0 || is_worker(loop, now_ns))
        return false;
    enum place place = place_of_model(loop, args[0], now_ns);
    if (place == NOWHERE && !PyErr_Occurred())
        place = place_of_arguments(args, num_args);
    if (place == NOWHERE || PyErr_Occurred())
        return false;
    const enum purpose purpose =
        note_mode(loop->evaluation, steps, wants_gradients(), args, num_args);
    if (place != ON_CPU || PyErr_Occurred())
        return purpose != TRAINS;
    if (purpose == MINES && passes_are_known(loop->evaluation))
        return true;
    if (observing.mode == STARTS_RECORDING)
        wake_up();
    loop_begin_forward(loop, clock_now(), steps_expected_number(steps), purpose != TRAINS);
    return true;
}

/* True: the call is to be observed. */
static bool begin_call(struct thread_state *state, PyObject *const *args, Py_ssize_t num_args)
{
    Loop *loop = current_loop(state);
    if (loop == NULL)
        return false;
    PyObject *steps =
        Py_NewRef(observing.steps); /* Python code that is called here may replace both */
    Py_INCREF((PyObject *)loop);
    const bool is_observed = begin_pass(loop, (Steps *)steps, args, num_args);
    Py_DECREF((PyObject *)loop);
    Py_DECREF(steps);
    return is_observed;
}

static void end_call(struct thread_state *state)
{
    Loop *loop = current_loop(state);
    if (loop == NULL)
        return;
    const int64_t now_ns = clock_now();
    if (loop->evaluation->in_pass) {
        loop->evaluation->in_pass = false;
        loop->evaluation->end_ns = now_ns;
    }
    if (loop->forward_begin_ns != 0)
        loop_end_forward(loop, now_ns);
}

/* A model calls its modules hundreds of times in a step; what matters is the outermost call, and
 * the others pass here. */
PyObject *call_module(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    if (observing.mode == NOT_OBSERVING || observing.hooks == NULL ||
        IOPROF_VECTORCALL_NARGS(num_args) < 1)
        return call_original(self, args, num_args, names);
    struct thread_state *state = get_thread_state();
    if (state->calling || state->fetching || state->transforming)
        return call_original(self, args, num_args, names);
    const int64_t hook_begin_ns = begin_hook();
    const uint32_t generation = state->generation;
    state->calling = true;
    const Py_ssize_t num_named = names == NULL ? 0 : PyTuple_Size(names);
    const bool is_observed = begin_call(state, args, IOPROF_VECTORCALL_NARGS(num_args) + num_named);
    drop_exception();
    end_hook(hook_begin_ns);
    PyObject *result = call_original(self, args, num_args, names);
    if (!is_valid(state, generation))
        return result;
    state->calling = false;
    if (is_observed) {
        const int64_t hook_end_ns = begin_hook();
        struct raised raised = save_exception(result);
        end_call(state);
        restore_exception(result, raised);
        end_hook(hook_end_ns);
    }
    return result;
}

/* ----------------------------------------------------------------------------- backward passes */

static PyObject *tensors_of(PyObject *const *args, size_t num_args, PyObject *names)
{
    const Py_ssize_t num_positional = IOPROF_VECTORCALL_NARGS(num_args),
                     num_named = names == NULL ? 0 : PyTuple_Size(names);
    if (num_positional > 0)
        return args[0];
    for (Py_ssize_t place = 0; place < num_named; place++)
        if (PyUnicode_Compare(PyTuple_GetItem(names, place), name_tensors) == 0)
            return args[num_positional + place];
    return NULL;
}

/* The pass, without its exchange with other ranks, which DistributedDataParallel logs, and without
 * other times that were none. */
static void emit_backward(Loop *loop, int64_t start_ns, int64_t end_ns)
{
    PyObject *gradients = PyObject_GetAttr(observing.hooks, name_gradients);
    const long long step = ((Steps *)observing.steps)->number;
    if (PyList_Size(loop->backward_gaps) == 0 && gradients != NULL &&
        !is_set(gradients, name_has_models)) {
        emit_without_gaps(start_ns, end_ns, &(struct gaps){0}, &backward_name, step);
    } else if (gradients != NULL) {
        drop_result(PyObject_CallMethod(gradients, "end_backward", "LLLO", (long long)start_ns,
                                        (long long)end_ns, step, loop->backward_gaps));
        PyList_SetSlice(loop->backward_gaps, 0, PyList_Size(loop->backward_gaps), NULL);
    }
    Py_XDECREF(gradients);
}

PyObject *call_backward(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    PyObject *tensors = tensors_of(args, num_args, names);
    if (observing.mode == NOT_OBSERVING || observing.hooks == NULL || tensors == NULL)
        return call_original(self, args, num_args, names);
    Loop *loop = current_loop(get_thread_state());
    if (loop == NULL || is_worker(loop, clock_now())) {
        drop_exception();
        return call_original(self, args, num_args, names);
    }
    const int64_t hook_begin_ns = begin_hook();
    Py_INCREF((PyObject *)loop);
    loop->nested++;
    const bool on_cpu = loop->nested == 1 && place_of_first(tensors) == ON_CPU;
    if (on_cpu && observing.mode == STARTS_RECORDING)
        wake_up();
    const int64_t start_ns = clock_now();
    if (on_cpu)
        loop_begin_backward(loop, start_ns);
    drop_exception();
    end_hook(hook_begin_ns);
    PyObject *result = call_original(self, args, num_args, names);
    const int64_t end_ns = clock_now(), hook_end_ns = begin_hook();
    struct raised raised = save_exception(result);
    loop->nested--;
    if (on_cpu) {
        emit_backward(loop, start_ns, end_ns);
        if (loop->forward_begin_ns != 0)
            loop_add_gap(loop, start_ns, end_ns);
        else
            loop_end_backward(loop, end_ns);
    }
    restore_exception(result, raised);
    Py_DECREF((PyObject *)loop);
    end_hook(hook_end_ns);
    return result;
}

/* ---------------------------------------------------------------------------------- optimizers */

PyObject *native_begin_step(PyObject *Py_UNUSED(module), PyObject *optimizer)
{
    if (observing.mode == NOT_OBSERVING || observing.hooks == NULL)
        Py_RETURN_FALSE;
    const int64_t hook_begin_ns = begin_hook();
    Loop *loop = current_loop(get_thread_state());
    const int64_t now_ns = clock_now();
    const bool is_observed = loop != NULL && !is_worker(loop, now_ns);
    if (is_observed)
        loop_begin_step(loop, optimizer, now_ns);
    drop_exception();
    end_hook(hook_begin_ns);
    return PyBool_FromLong(is_observed && loop->num_optimizers == 1);
}

static bool is_on_cpu(PyObject *optimizer)
{
    PyObject *groups = PyObject_GetAttr(optimizer, name_param_groups);
    PyObject *group = groups == NULL ? NULL : PySequence_GetItem(groups, 0);
    PyObject *parameters = group == NULL ? NULL : PyObject_GetItem(group, name_params);
    const bool result = parameters != NULL && place_of_first(parameters) == ON_CPU;
    drop_exception();
    Py_XDECREF(groups);
    Py_XDECREF(group);
    Py_XDECREF(parameters);
    return result;
}

static void end_step(Loop *loop, PyObject *optimizer, int64_t start_ns, int64_t end_ns)
{
    if (observing.mode == STARTS_RECORDING || loop->stepped_type == NULL)
        drop_result(PyObject_CallMethod(observing.hooks, "start_rank", NULL));
    if (loop->known_optimizer != optimizer || end_ns >= loop->optimizer_until_ns) {
        loop->known_optimizer = optimizer;
        loop->optimizer_is_on_cpu = is_on_cpu(optimizer);
        loop->optimizer_until_ns = end_ns + LOOK_AGAIN_NS;
    }
    const bool on_cpu = loop->optimizer_is_on_cpu;
    if (loop->stepped_type != (PyObject *)Py_TYPE(optimizer)) {
        IOPROF_SET_REFERENCE(loop->stepped_type, Py_NewRef((PyObject *)Py_TYPE(optimizer)));
        drop_result(PyObject_CallMethod(observing.hooks, "note_optimizer", "OO", optimizer,
                                        on_cpu ? Py_True : Py_False));
    }
    PyObject *steps = Py_NewRef(observing.steps);
    if (loop->evaluation->num_passes != 0)
        end_evaluation(loop->evaluation, (Steps *)steps, loop->evaluation->end_ns);
    loop_end_step(loop, start_ns, end_ns, ((Steps *)steps)->number, on_cpu);
    if (!steps_end((Steps *)steps, optimizer, end_ns))
        drop_result(PyObject_CallMethod(steps, "step_optimizer", "OLL", optimizer,
                                        (long long)start_ns, (long long)end_ns));
    Py_DECREF(steps);
}

/* An optimizer has made a step; nothing where it was stepped by another one, whose step it is part
 * of. */
PyObject *native_end_step(PyObject *Py_UNUSED(module), PyObject *optimizer)
{
    Loop *loop = observing.mode == NOT_OBSERVING || observing.hooks == NULL
                     ? NULL
                     : current_loop(get_thread_state());
    if (loop != NULL && loop->num_optimizers > 0 && loop->optimizers[0].which == optimizer) {
        const int64_t start_ns = loop->optimizers[0].start_ns, end_ns = clock_now(),
                      hook_begin_ns = begin_hook();
        loop->num_optimizers = 0;
        Py_INCREF((PyObject *)loop);
        end_step(loop, optimizer, start_ns, end_ns);
        Py_DECREF((PyObject *)loop);
        end_hook(hook_begin_ns);
    }
    drop_exception();
    Py_RETURN_NONE;
}
