/* What the training loop of a thread computes on the CPU: `compute` spans.
 * ioprof/instrument/hooks/pytorch/compute.py is the same in Python, and says what each field
 * and function means; tests/test_step_hooks.py compares the two.
 *
 * It is used a dozen times in each step of a job, right after code that has evicted all else from
 * the processor's caches: few words of memory in a struct cost less there than objects of Python
 * do. What a loop of small steps loses is measured by benchmarks/small_steps.py. */
#ifndef IOPROF_SPANS_LOOP_H
#define IOPROF_SPANS_LOOP_H

#include "core_waits.h"
#include "labels.h"
#include "passes.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_OPTIMIZERS = 8, NUM_KNOWN = 4, LOOK_AGAIN_NS = 10000000 };

/* A TensorWatch, and what it says of itself. */
struct watch {
    PyObject *object;
    bool is_on, is_wanted, is_computation;
    int64_t num_quiet, num_untold;
};

/* Times that were no computation, in order. */
struct gaps {
    int num, room;
    struct gap {
        int64_t start_ns, end_ns;
    } *all;
};

typedef struct {
    PyObject_HEAD PyObject *weak_references;
    void *home; /* the state of the thread that made it */
    int64_t forward_begin_ns, step;
    int64_t pending_start_ns, pending_end_ns, pending_step; /* valid where `is_pending` */
    bool is_pending, is_inference, pending_is_inference;    /* without gradients */
    int64_t backward_begin_ns, backward_end_ns;
    int64_t nested;
    char in_collective;
    struct gaps gaps, closures;
    PyObject *backward_gaps; /* a list of (start, end), which hooks in Python use */
    struct watch loss, clipping;
    Passes *evaluation;
    struct core_waits cores;
    int num_optimizers;
    struct {
        const void *which;
        int64_t start_ns;
    } optimizers[MAX_OPTIMIZERS]; /* whose steps are in progress, outermost first */
    PyObject *stepped_type;       /* type of the optimizer that stepped last */
    /* What was found out less than LOOK_AGAIN_NS ago is not asked again: a job that changes it
     * takes longer than that. */
    struct known_model {
        PyObject *reference; /* weak; NULL: none */
        int64_t until_ns;
        int place;
    } models[NUM_KNOWN];
    int next_model;
    const void *known_optimizer;
    bool optimizer_is_on_cpu;
    int64_t optimizer_until_ns;
    bool is_worker;
    int64_t role_until_ns;
} Loop;

#pragma GCC visibility push(hidden)

extern PyObject *loop_type;

/* Once per process. */
int prepare_loops(void);

/* -1 and an exception where Python code that they call raised one. */
int loop_begin_forward(Loop *loop, int64_t now_ns, int64_t step, bool is_inference);
int loop_end_forward(Loop *loop, int64_t now_ns);
int loop_begin_backward(Loop *loop, int64_t now_ns);
int loop_end_backward(Loop *loop, int64_t now_ns);
int loop_begin_step(Loop *loop, const void *optimizer, int64_t now_ns);
int loop_end_step(Loop *loop, int64_t start_ns, int64_t end_ns, int64_t step, bool on_cpu);
int loop_add_gap(Loop *loop, int64_t start_ns, int64_t end_ns);
void emit_without_gaps(int64_t begin_ns, int64_t end_ns, const struct gaps *gaps,
                       struct label *name, int64_t step);

extern struct label backward_name;

#pragma GCC visibility pop

#endif
