/* What the module has under way: the recording, and where spans go instead. All of it is guarded by
 * the GIL, except what ring.c does with atomics when a thread ends. */
#ifndef IOPROF_SPANS_STATE_H
#define IOPROF_SPANS_STATE_H

#include "python_api.h"

#include "ring.h"

enum { RECORDING = 1, REHEARSING = 2, REDIRECTED = 4 };

/* Python functions that take the place of the module's own. */
struct redirection {
    PyObject *span, *emit, *intern;
};

#pragma GCC visibility push(hidden)

extern int mode; /* a set of the above; 0: off */
extern struct ioprof_ring recording;
extern struct ioprof_ring
    rehearsal; /* a throw-away recording of one thread, which measures what a span costs */
extern __thread struct ioprof_writer
    writer; /* writer.ring is &rehearsal only while this thread rehearses */
extern struct redirection redirection;

#pragma GCC visibility pop

static inline struct ioprof_ring *current_ring(void)
{
    return writer.ring == &rehearsal ? &rehearsal : &recording;
}

#endif
