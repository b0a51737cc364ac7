/* A read as the job asked for it, whichever function it called. */
#ifndef IOPROF_REQUEST_H
#define IOPROF_REQUEST_H

#include "gnu_source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define AT_POSITION (-1) /* a request's offset: the descriptor's position, which then moves */
#define MAX_READ_BYTES 0x7ffff000 /* of one read, whatever was asked for (read(2)) */
#define MAX_PARTS 1024            /* IOV_MAX */
#define MAX_SPLIT_PARTS 16        /* of a readv that may be made in two halves */

struct request {
    int descriptor;
    int count;
    const struct iovec *parts;
    int64_t offset; /* or AT_POSITION */
    int flags;      /* of preadv2 */
};

#pragma GCC visibility push(hidden)

/* Makes the read. */
ssize_t make_request(const struct request *request);

/* What is left of a request after its first `done` bytes; `parts` has room for as many as the
 * request has. */
struct request rest_of_request(const struct request *request, int64_t done, struct iovec *parts);

/* Bytes asked for; -1: more than one read may move, or a request that the kernel will refuse. */
int64_t wanted_bytes(const struct request *request);

#pragma GCC visibility pop

/* What the kernel would refuse goes to the real function. */
static inline bool has_valid_parts(const struct iovec *parts, int count)
{
    return parts != NULL && count > 0 && count <= MAX_PARTS;
}

#endif
