/* Calls a profiler plugin in the way NCCL does (src/plugin/profiler.cc, src/transport/net.cc and
 * profiler.cc of NCCL 2.23 to 2.30), by any version of the interface. A shared library, for
 * programs in C and, by ctypes, in Python. */
#include "nccl_calls.h"

#include "profiler_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHANNELS 64

struct communicator {
    void *context;
    uint64_t hash;
    const char *name;
    int rank;
};

struct operation {
    struct communicator *communicator;
    void *handle;
    void *call;
    void *channels[CHANNELS];
    void *send, *receive;
    const char *function, *datatype;
    size_t count;
    int peer;
    uint64_t sequence;
};

static void *library, *symbol;
static int version, activated; /* the plugin sets `activated` while other threads read it */

#define mask __atomic_load_n(&activated, __ATOMIC_RELAXED)

int nccl_load(const char *plugin, int wanted)
{
    char name[32];
    if ((library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL)) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 0;
    }
    snprintf(name, sizeof name, "ncclProfiler_v%d", wanted);
    symbol = dlsym(library, name);
    version = wanted;
    return symbol != NULL;
}

void nccl_unload(void)
{
    dlclose(library);
    library = symbol = NULL;
}

int nccl_mask(void)
{
    return mask;
}

struct communicator *nccl_open(uint64_t hash, const char *name, int ranks, int rank)
{
    struct communicator *made = calloc(1, sizeof *made);
    *made = (struct communicator){.hash = hash, .name = name, .rank = rank};
    if (version >= 5)
        ((struct profiler_v5 *)symbol)
            ->init(&made->context, hash, &activated, name, 1, ranks, rank, NULL);
    else if (version == 4)
        ((struct profiler_v4 *)symbol)
            ->init(&made->context, &activated, name, hash, 1, ranks, rank, NULL);
    else
        ((struct profiler_v1 *)symbol)->init(&made->context, &activated);
    return made;
}

/* The members after `init` have the same places and, but for the event, the same types in all
 * versions. */
static void *start(struct communicator *communicator, void *event)
{
    void *handle = (void *)-1;
    if (version >= 5)
        ((struct profiler_v5 *)symbol)->start(communicator->context, &handle, event);
    else if (version == 4)
        ((struct profiler_v4 *)symbol)->start(communicator->context, &handle, event);
    else if (version == 3)
        ((struct profiler_v3 *)symbol)->start(communicator->context, &handle, event);
    else if (version == 2)
        ((struct profiler_v2 *)symbol)->start(communicator->context, &handle, event);
    else
        ((struct profiler_v1 *)symbol)->start(communicator->context, &handle, event);
    return handle;
}

static void stop(void *handle)
{
    if (handle != NULL)
        ((struct profiler_v1 *)symbol)->stop(handle);
}

static void record(void *handle, int state, union event_update *update)
{
    if (handle != NULL)
        ((struct profiler_v1 *)symbol)->record(handle, state, update);
}

void nccl_close(struct communicator *communicator)
{
    if (communicator->context != NULL)
        ((struct profiler_v1 *)symbol)->finalize(communicator->context);
    /* not freed: events of open operations may follow */
}

/* ---------------------------------------------------------------------------------------- the host
 */

static int is_point_to_point(const char *function)
{
    return strcmp(function, "Send") == 0 || strcmp(function, "Recv") == 0;
}

static uint8_t number_of(const char *word, const char *const *words, uint8_t count)
{
    for (uint8_t number = 0; number < count; number++)
        if (strcmp(word, words[number]) == 0)
            return number;
    return count;
}

static void *start_task_v1(struct operation *made, void *group)
{
    static const char *const functions[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                            "AllReduce", "SendRecv", "Send",      "Recv"};
    static const char *const datatypes[] = {
        "ncclInt8",   "Unknown",     "ncclInt32",   "ncclUint32",  "ncclInt64",
        "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
    struct communicator *communicator = made->communicator;
    struct event_v1 event = {.parent = group, .rank = communicator->rank};
    uint8_t function = number_of(made->function, functions, 8),
            datatype = number_of(made->datatype, datatypes, 10);
    if (is_point_to_point(made->function)) {
        event.type = EVENT_POINT_TO_POINT;
        event.point_to_point.name = communicator->name;
        event.point_to_point.communicator_hash = communicator->hash;
        event.point_to_point.function = function;
        event.point_to_point.datatype = datatype;
        event.point_to_point.count = made->count;
        event.point_to_point.peer = made->peer;
    } else {
        event.type = EVENT_COLLECTIVE;
        event.collective.name = communicator->name;
        event.collective.communicator_hash = communicator->hash;
        event.collective.sequence = made->sequence;
        event.collective.function = function;
        event.collective.datatype = datatype;
        event.collective.count = made->count;
        event.collective.root = made->peer;
    }
    return start(communicator, &event);
}

#define FILL_TASK(event)                                      \
    do {                                                      \
        (event).rank = made->communicator->rank;              \
        if (is_point_to_point(made->function)) {              \
            (event).type = EVENT_POINT_TO_POINT;              \
            (event).point_to_point.function = made->function; \
            (event).point_to_point.datatype = made->datatype; \
            (event).point_to_point.count = made->count;       \
            (event).point_to_point.peer = made->peer;         \
        } else {                                              \
            (event).type = EVENT_COLLECTIVE;                  \
            (event).collective.sequence = made->sequence;     \
            (event).collective.function = made->function;     \
            (event).collective.datatype = made->datatype;     \
            (event).collective.count = made->count;           \
            (event).collective.root = made->peer;             \
            (event).collective.num_channels = 8;              \
        }                                                     \
    } while (0)

#define FILL_IDENTITY(event)                                                     \
    do {                                                                         \
        if ((event).type == EVENT_POINT_TO_POINT) {                              \
            (event).point_to_point.name = made->communicator->name;              \
            (event).point_to_point.communicator_hash = made->communicator->hash; \
        } else {                                                                 \
            (event).collective.name = made->communicator->name;                  \
            (event).collective.communicator_hash = made->communicator->hash;     \
        }                                                                        \
    } while (0)

static void *start_task(struct operation *made, void *group)
{
    struct event_v2 second = {.parent = group};
    struct event_v3 third = {.parent = group};
    struct event_v4 fourth = {.parent = group};
    struct event_v5 fifth = {.parent = made->call};
    if (group == NULL && version < 5)
        return NULL; /* as NCCL does */
    switch (version) {
    case 1:
        return start_task_v1(made, group);
    case 2:
        FILL_TASK(second);
        FILL_IDENTITY(second);
        return start(made->communicator, &second);
    case 3:
        FILL_TASK(third);
        FILL_IDENTITY(third);
        return start(made->communicator, &third);
    case 4:
        FILL_TASK(fourth);
        return start(made->communicator, &fourth);
    default:
        FILL_TASK(fifth);
        return start(made->communicator, &fifth);
    }
}

static void *start_group(struct communicator *communicator)
{
    struct event_v4 old = {.type = EVENT_GROUP};
    struct event_v5 new = {.type = EVENT_GROUP};
    return version < 5 ? start(communicator, &old) : start(communicator, &new);
}

static void *start_call(struct operation *made, int is_captured)
{
    struct event_v5 event = {.type = EVENT_GROUP_CALL};
    void *group = start(made->communicator, &event);
    event = (struct event_v5){.parent = group};
    if (is_point_to_point(made->function)) {
        event.type = EVENT_POINT_TO_POINT_CALL;
        event.point_to_point_call.is_captured = is_captured;
    } else {
        event.type = EVENT_COLLECTIVE_CALL;
        event.collective_call.is_captured = is_captured;
    }
    void *call = start(made->communicator, &event);
    stop(call);
    stop(group);
    return call;
}

static void launch(struct operation *made)
{
    void *group = start_group(made->communicator);
    made->handle = start_task(made, group);
    stop(made->handle);
    stop(group);
}

struct operation *nccl_enqueue(struct communicator *communicator, const char *function,
                               size_t count, const char *datatype, int peer, uint64_t sequence,
                               int is_captured)
{
    struct operation *made = calloc(1, sizeof *made);
    *made = (struct operation){communicator,   .function = function, .datatype = datatype,
                               .count = count, .peer = peer,         .sequence = sequence};
    if (mask == 0)
        return made;
    if (version >= 5)
        made->call = start_call(made, is_captured);
    if (!is_captured)
        launch(made);
    return made;
}

struct operation *nccl_enqueue_copies(struct communicator *communicator, const char *function,
                                      size_t count, const char *datatype)
{
    struct operation *made = nccl_enqueue(communicator, function, count, datatype, -1, 0, 1);
    struct event_v5 event = {.type = EVENT_COPY_ENGINE_COLLECTIVE, .rank = communicator->rank};
    event.copy_engine_collective.function = function;
    event.copy_engine_collective.count = count;
    event.copy_engine_collective.datatype = datatype;
    event.copy_engine_collective.root = -1;
    if (mask & EVENT_COPY_ENGINE_COLLECTIVE) {
        made->handle = start(communicator, &event);
        stop(made->handle);
    }
    return made;
}

struct operation *nccl_replay(struct operation *captured)
{
    struct operation *made = calloc(1, sizeof *made);
    *made = *captured;
    if (mask != 0)
        launch(made);
    return made;
}

int nccl_is_known(const struct operation *operation)
{
    return operation->handle != NULL;
}

void nccl_free(struct operation *operation)
{
    free(operation);
}

/* ---------------------------------------------------------------------------------------- the
 * proxy thread */

void nccl_start_channel(struct operation *operation, int channel, uint64_t timer)
{
    struct event_v3 third = {.type = EVENT_KERNEL_CHANNEL, .parent = operation->handle};
    struct event_v4 fourth = {.type = EVENT_KERNEL_CHANNEL, .parent = operation->handle};
    struct event_v5 fifth = {.type = EVENT_KERNEL_CHANNEL, .parent = operation->handle};
    third.kernel_channel.channel = fourth.kernel_channel.channel = fifth.kernel_channel.channel =
        (uint8_t)channel;
    fourth.kernel_channel.timer = fifth.kernel_channel.timer = timer;
    if (!(mask & EVENT_KERNEL_CHANNEL))
        return;
    operation->channels[channel] = start(operation->communicator, version == 3   ? (void *)&third
                                                                  : version == 4 ? (void *)&fourth
                                                                                 : (void *)&fifth);
}

void nccl_stop_channel(struct operation *operation, int channel, uint64_t timer)
{
    union event_update update = {.timer = timer};
    if (version >= 4)
        record(operation->channels[channel], KERNEL_CHANNEL_STOPS, &update);
    stop(operation->channels[channel]);
}

static void *start_proxy(struct operation *operation, int pid, int is_send)
{
    struct event_v1 event = {.type = EVENT_PROXY_OPERATION,
                             .parent = operation->handle,
                             .rank = operation->communicator->rank};
    event.proxy_operation =
        (struct proxy_operation){.pid = pid, .num_steps = 1, .is_send = is_send};
    return start(operation->communicator, &event); /* versions 1 and 2 are the same here */
}

void nccl_start_proxy(struct operation *operation, int pid)
{
    if (!(mask & EVENT_PROXY_OPERATION))
        return;
    operation->send = start_proxy(operation, pid, 1);
    operation->receive = start_proxy(operation, pid, 0);
}

static void *start_step(struct operation *operation, void *parent, int state)
{
    struct event_v1 event = {.type = EVENT_PROXY_STEP, .parent = parent};
    void *step = start(operation->communicator, &event);
    record(step, state, NULL);
    return step;
}

void nccl_send(struct operation *operation)
{
    void *step = start_step(operation, operation->send, STEP_SEND_WAITS_FOR_GPU);
    record(step, STEP_SEND_WAITS_FOR_NETWORK, NULL);
    stop(step);
}

void nccl_receive(struct operation *operation)
{
    void *step = start_step(operation, operation->receive, STEP_RECEIVE_WAITS_FOR_NETWORK);
    record(step, STEP_RECEIVE_FLUSHES, NULL);
    record(step, STEP_RECEIVE_WAITS_FOR_GPU, NULL);
    stop(step);
}

void nccl_stop_proxy(struct operation *operation)
{
    stop(operation->send);
    stop(operation->receive);
}
