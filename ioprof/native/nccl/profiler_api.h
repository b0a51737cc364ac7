/* NCCL's profiler interface, versions 1 to 6, as far as this plugin uses it: layout of structures
 * and values of constants. NCCL looks for a symbol ncclProfiler_vN in the plugin, from the newest
 * version that it knows downwards. Its own headers are in the folder src/include/plugin/profiler of
 * NCCL. */
#ifndef IOPROF_NCCL_PROFILER_API_H
#define IOPROF_NCCL_PROFILER_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Types of events, and bits of the activation mask. */
enum {
    EVENT_GROUP = 1 << 0,
    EVENT_COLLECTIVE = 1 << 1,
    EVENT_POINT_TO_POINT = 1 << 2,
    EVENT_PROXY_OPERATION = 1 << 3,
    EVENT_PROXY_STEP = 1 << 4,
    EVENT_KERNEL_CHANNEL = 1 << 6,
    EVENT_GROUP_CALL = 1 << 8, /* from version 5 on: calls of the API */
    EVENT_COLLECTIVE_CALL = 1 << 9,
    EVENT_POINT_TO_POINT_CALL = 1 << 10,
    EVENT_COPY_ENGINE_COLLECTIVE = 1 << 12, /* from version 6 on */
};

/* States of events. */
enum {
    STEP_SEND_WAITS_FOR_GPU = 8,
    STEP_SEND_WAITS_FOR_NETWORK = 9,
    STEP_RECEIVE_WAITS_FOR_NETWORK = 10,
    STEP_RECEIVE_FLUSHES = 11,
    STEP_RECEIVE_WAITS_FOR_GPU = 12,
    STEP_SEND_WAITS_FOR_PEER = 20, /* from version 4 on, between 8 and 9 */
    KERNEL_CHANNEL_STOPS = 22,
};

struct proxy_operation {
    pid_t pid; /* of the process that made it: with PXN, not that whose proxy thread reports it */
    uint8_t channel;
    int peer;
    int num_steps;
    int chunk_bytes;
    int is_send;
};

struct proxy_step {
    int step;
};

struct kernel_channel_v3 {
    uint8_t channel;
};

struct kernel_channel_v4 {
    uint8_t channel;
    uint64_t timer;
};

struct collective_v4 {
    uint64_t sequence;
    const char *function;
    const void *send_buffer;
    void *receive_buffer;
    size_t count;
    int root;
    const char *datatype;
    uint8_t num_channels;
    uint8_t num_warps;
    const char *algorithm;
    const char *protocol;
};

struct point_to_point_v4 {
    const char *function;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t num_channels;
};

struct event_v1 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator_hash;
            uint64_t sequence;
            uint8_t function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            uint8_t datatype;
            uint32_t reduction;
            size_t traffic_bytes;
            uint8_t num_channels;
            uint8_t num_warps;
            uint8_t algorithm;
            uint8_t protocol;
            int is_collnet;
            int is_nvls;
        } collective;
        struct {
            const char *name;
            uint64_t communicator_hash;
            uint8_t function;
            void *buffer;
            uint8_t datatype;
            size_t count;
            int peer;
        } point_to_point;
        struct proxy_operation proxy_operation;
        struct proxy_step proxy_step;
    };
};

struct event_v2 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator_hash;
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            size_t traffic_bytes;
            uint8_t num_channels;
            uint8_t num_warps;
            const char *algorithm;
            const char *protocol;
        } collective;
        struct {
            const char *name;
            uint64_t communicator_hash;
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } point_to_point;
        struct proxy_operation proxy_operation;
        struct proxy_step proxy_step;
    };
};

struct event_v3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator_hash;
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            uint8_t num_channels;
            uint8_t num_warps;
            const char *algorithm;
            const char *protocol;
        } collective;
        struct {
            const char *name;
            uint64_t communicator_hash;
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } point_to_point;
        struct kernel_channel_v3 kernel_channel;
    };
};

struct event_v4 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct collective_v4 collective;
        struct point_to_point_v4 point_to_point;
        struct kernel_channel_v4 kernel_channel;
    };
};

struct event_v5 {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *function;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool is_captured;
        } collective_call;
        struct {
            const char *function;
            size_t count;
            const char *datatype;
            void *stream;
            bool is_captured;
        } point_to_point_call;
        struct collective_v4 collective; /* a member follows that is not used here */
        struct point_to_point_v4 point_to_point;
        struct kernel_channel_v4 kernel_channel;
        struct {
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
        } copy_engine_collective; /* version 6; further members follow */
    };
};

/* What recordEventState passes: from version 4 on a GPU time with the end of a kernel channel,
 * before nothing that is used here. */
union event_update {
    uint64_t timer;
};

typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line,
                            const char *format, ...);

struct profiler_v1 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start)(void *context, void **handle, struct event_v1 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union event_update *update);
    int (*finalize)(void *context);
};

struct profiler_v2 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start)(void *context, void **handle, struct event_v2 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union event_update *update);
    int (*finalize)(void *context);
};

struct profiler_v3 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start)(void *context, void **handle, struct event_v3 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union event_update *update);
    int (*finalize)(void *context);
};

struct profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                int rank, nccl_logger logger);
    int (*start)(void *context, void **handle, struct event_v4 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union event_update *update);
    int (*finalize)(void *context);
};

/* Versions 5 and 6. */
struct profiler_v5 {
    const char *name;
    int (*init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                int rank, nccl_logger logger);
    int (*start)(void *context, void **handle, struct event_v5 *event);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union event_update *update);
    int (*finalize)(void *context);
};

#endif
