/* The file of stack samples. ioprof/format/stack_format.py describes it. */

#ifndef IOPROF_STACKS_OUTPUT_H
#define IOPROF_STACKS_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

enum record_kind {
    TEXT_RECORD = 0,
    CODE_RECORD = 1,
    STACK_RECORD = 2,
    SAMPLES_RECORD = 3,
    HOLDER_RECORD = 4
};

struct sample {
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    uint32_t target;
    uint32_t stack;
};

/* What held the interpreter's lock while the thread of a target waited for it, in the sample of
 * that time. */
struct holder {
    uint64_t time_ns;
    uint32_t target;
    uint32_t stack;
    uint32_t thread; /* the kernel's number of it */
    uint32_t unused;
};

#define SAMPLES_AT_ONCE 1024u
#define BUFFER_BYTES (1u << 18)

struct output {
    int descriptor;
    int error; /* errno of the first write that failed; nothing is written after it */
    size_t used;
    unsigned samples;
    uint8_t buffer[BUFFER_BYTES];
    struct sample pending[SAMPLES_AT_ONCE];
};

struct piece {
    const void *bytes;
    size_t length;
};

/* Appends a record of these pieces. */
void write_record(struct output *output, enum record_kind kind, const struct piece *pieces,
                  unsigned count);

void write_sample(struct output *output, struct sample sample);

/* Hands all to the kernel. */
void flush(struct output *output);

#endif
