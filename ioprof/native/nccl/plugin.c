/* The plugin that NCCL loads: one set of functions per version of the interface, all of which end
 * in operations.c.
 *
 * What NCCL gets as a context or as the handle of an event is a number and never a pointer: a
 * context is the index of a communicator plus one, a handle is a tag in its lowest bits and above
 * it the number of an operation, or the time of a call. So nothing is freed or looked up through a
 * pointer, whatever the order of events. All functions succeed, whatever happens, so that the job
 * goes on. */
#include "names.h"
#include "operations.h"
#include "profiler_api.h"

#include <string.h>

enum { SUCCESS = 0 };

/* A group needs a handle, since NCCL reports none of its operations otherwise. A captured call is
 * one that a CUDA graph recorded: its operations are reported anew, with the same call as their
 * parent, whenever the graph runs. */
enum tag {
    TAG_GROUP = 1,
    TAG_CALL,
    TAG_CAPTURED_CALL,
    TAG_OPERATION,
    TAG_CHANNEL,
    TAG_PROXY,
    TAG_STEP_OF_SEND,
    TAG_STEP
};
#define TAG_BITS 4

static void *handle_of(enum tag tag, uint64_t value)
{
    return (void *)(uintptr_t)(value << TAG_BITS | tag);
}

static enum tag tag_of(const void *handle)
{
    return (enum tag)((uintptr_t)handle & ((1 << TAG_BITS) - 1));
}

static uint64_t value_of(const void *handle)
{
    return (uintptr_t)handle >> TAG_BITS;
}

/* ------------------------------------------------------------------------------- communicators */

enum {
    OPERATIONS = EVENT_COLLECTIVE | EVENT_POINT_TO_POINT,
    MASK_OF_PROXIES = OPERATIONS | EVENT_PROXY_OPERATION | EVENT_PROXY_STEP,
    MASK_OF_KERNELS = OPERATIONS | EVENT_KERNEL_CHANNEL,
    MASK_OF_COPY_ENGINES = MASK_OF_KERNELS | EVENT_COPY_ENGINE_COLLECTIVE,
};

static void set_name(struct ioprof_communicator *communicator, const char *name)
{
    if (name != NULL)
        memcpy(communicator->name, name, strnlen(name, sizeof communicator->name));
}

static int open_communicator(uint32_t api, void **context, int *mask, int events,
                             struct ioprof_communicator described, const char *name)
{
    bool is_open = log_open(api);
    *context = NULL;
    __atomic_store_n(mask, is_open ? events : 0,
                     __ATOMIC_RELAXED); /* one for all communicators, others of which are in use */
    if (!is_open)
        return SUCCESS;
    uint64_t index = log_add_communicator();
    struct ioprof_communicator *communicator = log_communicator(index);
    *context = (void *)(uintptr_t)(index + 1);
    if (communicator == NULL)
        return SUCCESS;
    described.opened_ns = log_absolute(log_now());
    described.is_complete = 0;
    *communicator = described;
    set_name(communicator, name);
    __atomic_store_n(&communicator->is_complete, 1, __ATOMIC_RELEASE);
    return SUCCESS;
}

static uint64_t index_of(const void *context)
{
    return (uint64_t)(uintptr_t)context - 1; /* of no context: beyond every table */
}

static int finalize(void *context)
{
    struct ioprof_communicator *communicator = log_communicator(index_of(context));
    if (communicator != NULL)
        __atomic_store_n(&communicator->closed_ns, log_absolute(log_now()), __ATOMIC_RELAXED);
    return SUCCESS;
}

/* Until version 3, what identifies a communicator comes with its operations. */
static void identify(void *context, const char *name, uint64_t hash, int rank)
{
    struct ioprof_communicator *communicator = log_communicator(index_of(context));
    if (communicator == NULL || __atomic_load_n(&communicator->hash, __ATOMIC_RELAXED) == hash)
        return;
    set_name(communicator, name);
    __atomic_store_n(&communicator->rank, rank, __ATOMIC_RELAXED);
    __atomic_store_n(&communicator->hash, hash, __ATOMIC_RELAXED);
}

static int init_v1(void **context, int *mask)
{
    return open_communicator(1, context, mask, MASK_OF_PROXIES,
                             (struct ioprof_communicator){.rank = -1}, NULL);
}

static int init_v2(void **context, int *mask)
{
    return open_communicator(2, context, mask, MASK_OF_PROXIES,
                             (struct ioprof_communicator){.rank = -1}, NULL);
}

static int init_v3(void **context, int *mask)
{
    return open_communicator(3, context, mask, MASK_OF_KERNELS,
                             (struct ioprof_communicator){.rank = -1}, NULL);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                   int rank, nccl_logger logger)
{
    (void)logger;
    struct ioprof_communicator described = {
        .hash = hash, .rank = rank, .ranks = ranks, .nodes = nodes};
    return open_communicator(4, context, mask, MASK_OF_KERNELS, described, name);
}

static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                   int rank, nccl_logger logger)
{
    (void)logger;
    struct ioprof_communicator described = {
        .hash = hash, .rank = rank, .ranks = ranks, .nodes = nodes};
    return open_communicator(5, context, mask, MASK_OF_KERNELS, described, name);
}

static int init_v6(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                   int rank, nccl_logger logger)
{
    (void)logger;
    struct ioprof_communicator described = {
        .hash = hash, .rank = rank, .ranks = ranks, .nodes = nodes};
    return open_communicator(6, context, mask, MASK_OF_COPY_ENGINES, described, name);
}

/* -------------------------------------------------------------------------------------- events */

/* When the call was made that an operation belongs to, or, if there is none or the operation is of
 * a graph, now. */
static int64_t time_of_call(const void *parent)
{
    return tag_of(parent) == TAG_CALL ? (int64_t)value_of(parent) : log_now();
}

static unsigned flags_of_call(const void *parent)
{
    return tag_of(parent) == TAG_CAPTURED_CALL ? GRAPH_FLAG : 0;
}

/* `call` is the handle of the call that the operation belongs to; NULL: there are none before
 * version 5. */
static void *enqueue(void *context, const void *call, struct operation_label label)
{
    label.communicator = index_of(context);
    label.flags |= flags_of_call(call);
    label.enqueue_ns = time_of_call(call);
    uint32_t operation = operation_enqueue(&label);
    return operation == 0 ? NULL : handle_of(TAG_OPERATION, operation);
}

static void *call(bool is_captured)
{
    int64_t now_ns = log_now();
    return handle_of(is_captured ? TAG_CAPTURED_CALL : TAG_CALL,
                     (uint64_t)(now_ns > 0 ? now_ns : 0));
}

static void *start_channel(const void *parent, uint64_t timer)
{
    uint64_t operation = value_of(parent);
    if (tag_of(parent) != TAG_OPERATION || !operation_start_channel((uint32_t)operation, timer))
        return NULL;
    return handle_of(TAG_CHANNEL, operation);
}

static void *start_proxy(const void *parent, const struct proxy_operation *proxy)
{
    uint64_t operation = value_of(parent);
    if ((uint32_t)proxy->pid != log_pid() || tag_of(parent) != TAG_OPERATION ||
        !operation_start_proxy((uint32_t)operation))
        return NULL;
    return handle_of(TAG_PROXY, operation << 1 | (proxy->is_send ? 1 : 0));
}

static void *start_step(const void *parent)
{
    if (tag_of(parent) != TAG_PROXY)
        return NULL;
    return handle_of(value_of(parent) & 1 ? TAG_STEP_OF_SEND : TAG_STEP, value_of(parent) >> 1);
}

/* What all versions have in common; `event` is a pointer to the structure of one of them. */
#define COLLECTIVE_LABEL(event, function_, bytes_)                                  \
    ((struct operation_label){                                                      \
        .function = (function_)((event)->collective.function),                      \
        .bytes = (bytes_)((event)->collective.datatype, (event)->collective.count), \
        .sequence = (int64_t)(event)->collective.sequence,                          \
        .peer = (event)->collective.root,                                           \
        .channels = (event)->collective.num_channels})
#define POINT_TO_POINT_LABEL(event, function_, bytes_)                                      \
    ((struct operation_label){                                                              \
        .function = (function_)((event)->point_to_point.function),                          \
        .bytes = (bytes_)((event)->point_to_point.datatype, (event)->point_to_point.count), \
        .sequence = -1,                                                                     \
        .peer = (event)->point_to_point.peer})

static int start_v1(void *context, void **handle, struct event_v1 *event)
{
    *handle = NULL;
    switch (event->type) {
    case EVENT_GROUP:
        *handle = handle_of(TAG_GROUP, 1);
        break;
    case EVENT_COLLECTIVE:
        identify(context, event->collective.name, event->collective.communicator_hash, event->rank);
        *handle =
            enqueue(context, NULL, COLLECTIVE_LABEL(event, function_of_number, bytes_of_number));
        break;
    case EVENT_POINT_TO_POINT:
        identify(context, event->point_to_point.name, event->point_to_point.communicator_hash,
                 event->rank);
        *handle = enqueue(context, NULL,
                          POINT_TO_POINT_LABEL(event, function_of_number, bytes_of_number));
        break;
    case EVENT_PROXY_OPERATION:
        *handle = start_proxy(event->parent, &event->proxy_operation);
        break;
    case EVENT_PROXY_STEP:
        *handle = start_step(event->parent);
        break;
    }
    return SUCCESS;
}

static int start_v2(void *context, void **handle, struct event_v2 *event)
{
    *handle = NULL;
    switch (event->type) {
    case EVENT_GROUP:
        *handle = handle_of(TAG_GROUP, 1);
        break;
    case EVENT_COLLECTIVE:
        identify(context, event->collective.name, event->collective.communicator_hash, event->rank);
        *handle = enqueue(context, NULL, COLLECTIVE_LABEL(event, function_of_name, bytes_of_name));
        break;
    case EVENT_POINT_TO_POINT:
        identify(context, event->point_to_point.name, event->point_to_point.communicator_hash,
                 event->rank);
        *handle =
            enqueue(context, NULL, POINT_TO_POINT_LABEL(event, function_of_name, bytes_of_name));
        break;
    case EVENT_PROXY_OPERATION:
        *handle = start_proxy(event->parent, &event->proxy_operation);
        break;
    case EVENT_PROXY_STEP:
        *handle = start_step(event->parent);
        break;
    }
    return SUCCESS;
}

static int start_v3(void *context, void **handle, struct event_v3 *event)
{
    *handle = NULL;
    switch (event->type) {
    case EVENT_GROUP:
        *handle = handle_of(TAG_GROUP, 1);
        break;
    case EVENT_COLLECTIVE:
        identify(context, event->collective.name, event->collective.communicator_hash, event->rank);
        *handle = enqueue(context, NULL, COLLECTIVE_LABEL(event, function_of_name, bytes_of_name));
        break;
    case EVENT_POINT_TO_POINT:
        identify(context, event->point_to_point.name, event->point_to_point.communicator_hash,
                 event->rank);
        *handle =
            enqueue(context, NULL, POINT_TO_POINT_LABEL(event, function_of_name, bytes_of_name));
        break;
    case EVENT_KERNEL_CHANNEL:
        *handle = start_channel(event->parent, 0);
        break;
    }
    return SUCCESS;
}

static int start_v4(void *context, void **handle, struct event_v4 *event)
{
    struct operation_label label;
    *handle = NULL;
    switch (event->type) {
    case EVENT_GROUP:
        *handle = handle_of(TAG_GROUP, 1);
        break;
    case EVENT_COLLECTIVE:
        *handle = enqueue(context, NULL, COLLECTIVE_LABEL(event, function_of_name, bytes_of_name));
        break;
    case EVENT_POINT_TO_POINT:
        label = POINT_TO_POINT_LABEL(event, function_of_name, bytes_of_name);
        label.channels = event->point_to_point.num_channels;
        *handle = enqueue(context, NULL, label);
        break;
    case EVENT_KERNEL_CHANNEL:
        *handle = start_channel(event->parent, event->kernel_channel.timer);
        break;
    }
    return SUCCESS;
}

/* Versions 5 and 6. */
static int start_v5(void *context, void **handle, struct event_v5 *event)
{
    struct operation_label label;
    *handle = NULL;
    switch (event->type) {
    case EVENT_GROUP:
    case EVENT_GROUP_CALL:
        *handle = handle_of(TAG_GROUP, 1);
        break;
    case EVENT_COLLECTIVE_CALL:
        *handle = call(event->collective_call.is_captured);
        break;
    case EVENT_POINT_TO_POINT_CALL:
        *handle = call(event->point_to_point_call.is_captured);
        break;
    case EVENT_COLLECTIVE:
        *handle = enqueue(context, event->parent,
                          COLLECTIVE_LABEL(event, function_of_name, bytes_of_name));
        break;
    case EVENT_POINT_TO_POINT:
        label = POINT_TO_POINT_LABEL(event, function_of_name, bytes_of_name);
        label.channels = event->point_to_point.num_channels;
        *handle = enqueue(context, event->parent, label);
        break;
    case EVENT_COPY_ENGINE_COLLECTIVE:
        label = (struct operation_label){
            .function = function_of_name(event->copy_engine_collective.function),
            .bytes = bytes_of_name(event->copy_engine_collective.datatype,
                                   event->copy_engine_collective.count),
            .sequence = (int64_t)event->copy_engine_collective.sequence,
            .peer = event->copy_engine_collective.root,
            .flags = COPY_ENGINE_FLAG,
        };
        *handle = enqueue(context, event->parent, label);
        break;
    case EVENT_KERNEL_CHANNEL:
        *handle = start_channel(event->parent, event->kernel_channel.timer);
        break;
    }
    return SUCCESS;
}

static int stop(void *handle)
{
    uint64_t value = value_of(handle);
    switch (tag_of(handle)) {
    case TAG_CHANNEL:
        operation_stop_channel((uint32_t)value);
        break;
    case TAG_PROXY:
        operation_stop_proxy((uint32_t)(value >> 1));
        break;
    case TAG_STEP: /* the GPU has taken what came */
        operation_see_gpu((uint32_t)value);
        break;
    default: /* the end of a call or of an enqueue */
        break;
    }
    return SUCCESS;
}

static int record(void *handle, int state, union event_update *update)
{
    uint32_t operation = (uint32_t)value_of(handle);
    enum tag tag = tag_of(handle);
    if (tag == TAG_CHANNEL && state == KERNEL_CHANNEL_STOPS && update != NULL)
        operation_set_end(operation, update->timer);
    else if (tag == TAG_STEP_OF_SEND &&
             (state == STEP_SEND_WAITS_FOR_NETWORK || state == STEP_SEND_WAITS_FOR_PEER))
        operation_see_gpu(operation);
    else if (tag == TAG_STEP &&
             (state == STEP_RECEIVE_FLUSHES || state == STEP_RECEIVE_WAITS_FOR_GPU))
        operation_see_data(operation);
    return SUCCESS;
}

/* ------------------------------------------------------------------------------------- symbols */

#pragma GCC visibility push(default)

extern struct profiler_v1 ncclProfiler_v1;
extern struct profiler_v2 ncclProfiler_v2;
extern struct profiler_v3 ncclProfiler_v3;
extern struct profiler_v4 ncclProfiler_v4;
extern struct profiler_v5 ncclProfiler_v5, ncclProfiler_v6;

struct profiler_v1 ncclProfiler_v1 = {"ioprof", init_v1, start_v1, stop, record, finalize};
struct profiler_v2 ncclProfiler_v2 = {"ioprof", init_v2, start_v2, stop, record, finalize};
struct profiler_v3 ncclProfiler_v3 = {"ioprof", init_v3, start_v3, stop, record, finalize};
struct profiler_v4 ncclProfiler_v4 = {"ioprof", init_v4, start_v4, stop, record, finalize};
struct profiler_v5 ncclProfiler_v5 = {"ioprof", init_v5, start_v5, stop, record, finalize};
struct profiler_v5 ncclProfiler_v6 = {"ioprof", init_v6, start_v5, stop, record, finalize};

#pragma GCC visibility pop
