/* Who is at the other end of a socket or pipe, and whether what it sends is data of the job.
 *
 * Most sockets and pipes of a training job carry messages within the job: collectives, the queues
 * of loader workers, trackers, notebooks. They are recognised by who reads them (a library that
 * communicates, see peers.c) and by who writes to them (a process of the same program image, or one
 * that multiprocessing started). Of the others, those that carry few and small messages are left
 * out: a peer sends data once 64 KiB came from it (16 KiB of a pipe) in receipts of at least 256
 * bytes on average. */
#ifndef IOPROF_PEERS_H
#define IOPROF_PEERS_H

#include "events.h"

enum peer_verdict { PEER_UNDECIDED, PEER_DATA, PEER_INTERNAL };

struct peer {
    enum peer_verdict verdict;
    int32_t name; /* number of a string; -1: none */
};

/* What was received while the verdict is open. */
struct volume {
    uint64_t calls, bytes;
};

#pragma GCC visibility push(hidden)

/* `caller`: an address within the function that made the call; NULL: not known. `from_here` is what
 * this descriptor received so far. Under the reentrancy guard. */
struct peer judge_socket(int descriptor, const void *caller, int64_t got, struct volume *from_here);
struct peer judge_pipe(int descriptor, struct volume *from_here);

/* The path of the library that an address lies in; NULL: not known. */
const char *library_at(const void *address);

#pragma GCC visibility pop

#endif
