/* Collectives and point-to-point operations in progress: from the enqueue on the host to the end of
 * the last channel of their kernel, or to the end of their last network transfer. Each event is of
 * one operation, by its number; events of operations that are no longer known are ignored. All
 * functions may be called by any thread at any time. Times are those of `log_now`. */
#ifndef IOPROF_NCCL_OPERATIONS_H
#define IOPROF_NCCL_OPERATIONS_H

#include "log.h"

struct operation_label {
    uint64_t communicator;
    enum ioprof_function function;
    int64_t bytes;    /* -1: not known */
    int64_t sequence; /* -1: none */
    int peer;         /* or root; -1: none */
    unsigned channels;
    unsigned flags;
    int64_t enqueue_ns;
};

#pragma GCC visibility push(hidden)

/* Number of the new operation; 0: it is not recorded. */
uint32_t operation_enqueue(const struct operation_label *label);

/* A channel of its kernel began; `timer` is the time of the GPU, 0: it gave none. False: it is not
 * known any more, and no end may be reported. */
bool operation_start_channel(uint32_t operation, uint64_t timer);

/* The time of the GPU at which a channel that began has ended. */
void operation_set_end(uint32_t operation, uint64_t timer);

/* A channel that began has ended. */
void operation_stop_channel(uint32_t operation);

/* The same of what a proxy thread does for it: transfers by the network. */
bool operation_start_proxy(uint32_t operation);
void operation_stop_proxy(uint32_t operation);

/* Within a proxy operation: the GPU was seen at work on it; data of a peer have come. */
void operation_see_gpu(uint32_t operation);
void operation_see_data(uint32_t operation);

#pragma GCC visibility pop

#endif
