/* Reads of sockets and pipes: timed, and recorded as `read` spans where the peer sends data of the
 * job (peers.h).
 *
 * A program that waits in poll, select or epoll_wait and then receives has waited for that receipt:
 * the first receipt of a thread after such a wait begins with it. */
#ifndef IOPROF_RECEIVING_H
#define IOPROF_RECEIVING_H

#include "channels.h"
#include "exchanges.h"
#include "switches.h"

/* A read of a socket or pipe while it goes on. */
struct receiving {
    struct open_file *file; /* NULL: neither socket, pipe nor eventfd */
    int descriptor;
    int64_t start;
};

#define NO_SET 0

/* The thread's last call of poll and its like that had descriptors to wait for. */
struct poll_wait {
    int64_t start, end;
    uint64_t set; /* what it waited for, as an object; NO_SET: no set of epoll */
    int result;
    bool is_pending; /* which descriptor ended it is not known yet: the next one that is received
                        from */
};

#pragma GCC visibility push(hidden)

extern __thread struct poll_wait last_poll;

/* `got`: the result of the call, into `parts`; NULL: not known. `caller`: an address in the
 * function that made it, NULL: not known. errno is left alone. */
void end_receiving(const struct receiving *receiving, int64_t got, const struct iovec *parts,
                   int count, const void *caller);

/* A descriptor that ended a call of poll and its like, or for which that waited. */
struct ready {
    int descriptor; /* -1: not known */
    bool sends;     /* it is ready to be sent to */
    enum ioprof_end how;
};

/* A call of poll and its like is over. errno is kept. */
void end_poll(int64_t start, int result, struct ready ready, uint64_t set);

/* Before a socket or pipe is closed: what was received in small pieces is recorded. */
void end_peer(int descriptor, struct open_file *file);

#pragma GCC visibility pop

static inline bool is_peer(const struct open_file *file)
{
    return flags_of(file) & (FILE_SOCKET | FILE_PIPE);
}

/* A connection that was upgraded to another protocol, or that could not be understood. */
static inline void stop_following(struct open_file *file)
{
    clear_flags(file, FILE_HTTP);
    set_flags(file, FILE_NO_HTTP);
}

/* Of a descriptor that regular_file has identified. */
static inline struct receiving begin_receiving(int descriptor)
{
    struct open_file *file = known_file(descriptor);
    if (file == NULL || !is_channel(file))
        return (struct receiving){NULL, descriptor, 0};
    int64_t start = clock_now();
    if (can_watch_switches())
        begin_switch_watch();
    return (struct receiving){file, descriptor, start};
}

#endif
