/* Spans of what a thread does to the samples of a job: transforms and decodes.
 *
 * An exception that is set by a function here is not the job's: the caller clears it. */
#ifndef IOPROF_SPANS_SAMPLE_SPANS_H
#define IOPROF_SPANS_SAMPLE_SPANS_H

#include "python_api.h"

#include "labels.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_HELD = 4 };

/* Calls of one name that were too short for a span each. */
struct short_calls {
    PyObject *name;
    int64_t sum_ns;
};

struct thread_state {
    uint32_t generation; /* of `observing`; a state of another one is reset */
    bool transforming;   /* within an observed transform, */
    bool operating;      /* within an observed operation of a pipeline, */
    bool loading;        /* within Pillow's load, */
    bool decodes;        /* which has something to decode */
    bool decoding;       /* within another observed decoder */
    bool calling;        /* within a call of a torch module, observed or not */
    bool
        fetching; /* within the fetch of a batch: modules that it calls are transforms of samples */
    int num_held;
    int64_t begin_ns; /* of the span of that transform */
    PyObject *name;   /* of that span, never freed; NULL: none */
    int64_t batch;    /* that it makes, -1: none, or of unknown number */
    struct short_calls held[MAX_HELD];
    int64_t held_start_ns, held_end_ns; /* of the first and the last of these calls */
    PyObject *loop; /* see loop.h; held by the thread's state in Python; NULL: not known */
};

#pragma GCC visibility push(hidden)

void write_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, PyObject *name,
                int64_t batch);

/* The same of a step; `name` may be NULL. */
void write_step_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, struct label *name,
                     int64_t step, int64_t batch);

/* The same of an exchange with other ranks, of so many bytes. */
void write_comm_span(int64_t start_ns, int64_t end_ns, PyObject *name, int64_t step, int64_t bytes);

/* This thread did something else than the transform that is under way, which continues after that.
 */
void split_transform(struct thread_state *state, int64_t start_ns, int64_t end_ns);

/* Something was decoded by this thread. */
void write_decode(struct thread_state *state, int64_t start_ns, int64_t end_ns, PyObject *name);

/* The same, of a call that may be too short for a span of its own. `name` is never freed. */
void add_decode(struct thread_state *state, int64_t start_ns, int64_t end_ns, PyObject *name);

/* Write the calls that are held back. */
void write_held(struct thread_state *state);

#pragma GCC visibility pop

#endif
