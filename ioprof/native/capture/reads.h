/* One read of a descriptor by read, pread, readv and their like: made, timed and recorded with the
 * source of its bytes.
 *
 * Where the file system supports it, the read is first made with RWF_NOWAIT, which returns what is
 * cached and nothing else: if that is all of it, and quick, the question is answered at the cost of
 * the read itself. What remains is read as usual between two readings of what the kernel counts for
 * this thread: blocks that it submitted, and voluntary switches, of which there is one when it had
 * to wait. */
#ifndef IOPROF_READS_H
#define IOPROF_READS_H

#include "request.h"

#pragma GCC visibility push(hidden)

/* `caller`: an address in the function that made the call. */
ssize_t read_request(const struct request *request, const void *caller);

/* The same for a request of one part without flags; `offset` may be AT_POSITION. */
ssize_t read_single(int descriptor, void *buffer, size_t size, int64_t offset, const void *caller);

#pragma GCC visibility pop

#endif
