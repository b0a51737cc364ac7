/* Reads of sockets and pipes: timed, and recorded as `read` spans where the peer sends data of the job (peers.h).
 *
 * A program that waits in poll, select or epoll_wait and then receives has waited for that receipt: the first receipt of a thread
 * after such a wait begins with it. */
#ifndef IOPROF_RECEIVING_H
#define IOPROF_RECEIVING_H

#include "clock.h"
#include "open_files.h"

/* A read of a socket or pipe while it goes on. */
struct receiving {
    struct open_file *file; /* NULL: neither socket nor pipe */
    int descriptor;
    int64_t start;
};

/* The thread's last call of poll and its like that had descriptors to wait for. */
struct poll_wait {
    int64_t start, end;
    int result;
};

#pragma GCC visibility push(hidden)

extern __thread struct poll_wait last_poll;

/* `got`: the result of the call. `caller`: an address in the function that made it, NULL: not known. errno is left alone. */
void end_receiving(const struct receiving *receiving, int64_t got, const void *caller);

/* Before a socket or pipe is closed: what was received in small pieces is recorded. */
void end_peer(int descriptor, struct open_file *file);

#pragma GCC visibility pop

static inline bool is_peer(const struct open_file *file)
{
    return flags_of(file) & (FILE_SOCKET | FILE_PIPE);
}

/* Of a descriptor that regular_file has identified. */
static inline struct receiving begin_receiving(int descriptor)
{
    struct open_file *file = known_file(descriptor);
    if (file == NULL || !is_peer(file))
        return (struct receiving){NULL, descriptor, 0};
    return (struct receiving){file, descriptor, clock_now()};
}

/* A call of poll that ended within this time of the next, without a result, is a part of one wait. */
#define SAME_WAIT_NS 100000

static inline void end_poll(int64_t start, int result)
{
    int64_t end = clock_now();
    bool goes_on = last_poll.result == 0 && last_poll.end != 0 && start - last_poll.end < SAME_WAIT_NS;
    last_poll = (struct poll_wait){goes_on ? last_poll.start : start, end, result};
}

#endif
