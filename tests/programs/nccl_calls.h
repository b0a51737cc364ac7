/* Calls a profiler plugin in the way NCCL does, by any version of the interface; see nccl_calls.c.
 */
#ifndef NCCL_CALLS_H
#define NCCL_CALLS_H

#include <stddef.h>
#include <stdint.h>

struct communicator;
struct operation;

/* Loads the plugin and looks for its symbol of that version. 0: it has none. */
int nccl_load(const char *plugin, int version);

/* What NCCL does when the last communicator is gone. */
void nccl_unload(void);

struct communicator *nccl_open(uint64_t hash, const char *name, int ranks, int rank);
void nccl_close(struct communicator *communicator);

/* The events that the plugin asked for last. */
int nccl_mask(void);

/* The host calls the API and enqueues an operation; `peer` is the root or the other rank. From
 * version 5 on it may belong to a graph. */
struct operation *nccl_enqueue(struct communicator *communicator, const char *function,
                               size_t count, const char *datatype, int peer, uint64_t sequence,
                               int is_captured);

/* A collective by copy engines, of version 6. */
struct operation *nccl_enqueue_copies(struct communicator *communicator, const char *function,
                                      size_t count, const char *datatype);

/* A graph that was captured with this operation runs again. */
struct operation *nccl_replay(struct operation *captured);

/* The proxy thread: a channel of the kernel begins, and ends, at these times of the GPU. */
void nccl_start_channel(struct operation *operation, int channel, uint64_t timer);
void nccl_stop_channel(struct operation *operation, int channel, uint64_t timer);

/* The proxy thread, over the network: it is told of the operation; has data of the GPU to send;
 * data of a peer came; all is done. */
void nccl_start_proxy(struct operation *operation, int pid);
void nccl_send(struct operation *operation);
void nccl_receive(struct operation *operation);
void nccl_stop_proxy(struct operation *operation);

/* Whether the plugin gave the operation a handle. */
int nccl_is_known(const struct operation *operation);

void nccl_free(struct operation *operation);

#endif
